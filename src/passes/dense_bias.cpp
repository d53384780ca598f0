#include "passes/dense_bias.h"

#include <algorithm>
#include <set>
#include <span>

#include "passes/gradient_sum.h"
#include "passes/simplify.h"

namespace flexc::passes {

using ir::NodeId;
using ir::Op;

namespace {

DType dtype_of(const Mod& mod, NodeId read) {
    return mod.program.buffers[mod.program.graph[read].symbol].dtype;
}

bool is_dense_read(const Mod& mod, NodeId read) {
    const ir::Graph& graph = mod.program.graph;
    const ir::Node& node = graph[read];
    if (node.op != Op::read || node.operands.empty() || mod.counters[read] != ir::kNoNode)
        return false;
    const std::vector<bool>& proven = mod.ranges.in_range[read];
    return graph[node.operands.back()].op == Op::kv_idx && proven.size() == node.operands.size() &&
           std::ranges::all_of(proven, [](bool is) { return is; }) &&
           std::ranges::all_of(
               std::span(node.operands).first(node.operands.size() - 1), [&](NodeId index) {
                   return is_query_of_bias(mod, index) || mod.place[index] <= Place::head;
               });
}

// Most choices that are asked for a band; more could only narrow it.
constexpr std::size_t kMostChoices = 8;

// A choice that each way from a root to a read goes through, by the same one of its branches.
struct Choice {
    NodeId condition;
    bool holds; // where the read is used
};
// Goes from the root down: a node of which no other is open is on each way. Operands come before
// nodes, so that an open node with the largest number has all of its uses behind it.
std::vector<Choice> choices_around(const ir::Graph& graph, NodeId root, NodeId read) {
    std::vector<bool> leads(graph.size(), false);
    leads[read] = true;
    for (const NodeId id : ir::reachable(graph, std::span(&root, 1)))
        for (const NodeId operand : graph[id].operands)
            leads[id] = leads[id] || leads[operand];
    std::vector<Choice> choices;
    std::set<NodeId> open = {root};
    while (!open.empty() && choices.size() < kMostChoices) {
        const NodeId id = *open.rbegin();
        open.erase(id);
        const std::vector<NodeId>& operands = graph[id].operands;
        if (open.empty() && graph[id].op == Op::fselect && !leads[operands[0]] &&
            leads[operands[1]] != leads[operands[2]])
            choices.push_back({operands[0], leads[operands[1]]});
        for (const NodeId operand : operands)
            if (id != read && leads[operand]) open.insert(operand);
    }
    return choices;
}

} // namespace

bool is_query_of_bias(const Mod& mod, NodeId index) {
    const analysis::AffineForm& form = mod.affine[index];
    return form.q == 1 && form.kv == 0 && !form.rest_uses(analysis::kInsideHead);
}

bool is_dense_bias(const Mod& mod, NodeId read) {
    if (!is_dense_read(mod, read)) return false;
    const DType dtype = dtype_of(mod, read);
    return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

bool are_dense_indices(const Mod& mod, NodeId read) {
    return is_dense_read(mod, read) && dtype_of(mod, read) == DType::i32;
}

analysis::Band band_of_use(ir::Graph& graph, NodeId root, NodeId read) {
    ir::Graph grown = graph; // bounds are nodes, of which none is left without a band
    Builder build(grown);
    analysis::Band band;
    for (const auto& [condition, holds] : choices_around(graph, root, read)) {
        const analysis::Band of_branch =
            analysis::band_of(grown, holds ? condition : build.apply(Op::bnot, {condition}));
        band.low.insert(band.low.end(), of_branch.low.begin(), of_branch.low.end());
        band.high.insert(band.high.end(), of_branch.high.begin(), of_branch.high.end());
    }
    const auto join = [&](std::vector<NodeId>& bounds, Op op) {
        while (bounds.size() > 1) {
            const NodeId last = bounds.back();
            bounds.pop_back();
            bounds.back() = build.apply(op, {bounds.back(), last});
        }
    };
    join(band.low, Op::imax);
    join(band.high, Op::imin);
    if (band.found()) graph = std::move(grown);
    return band;
}

NodeId dense_bias_of_score(const Mod& mod) {
    NodeId best = ir::kNoNode;
    if (!mod.program.is_dense()) return best;
    bool best_is_learned = false;
    for (const NodeId id : ir::reachable(mod.program.graph, std::span(&mod.score, 1))) {
        if (!is_dense_bias(mod, id) || mod.place[id] != Place::element) continue;
        const bool is_learned =
            std::ranges::find(mod.gradients, id, &ReadGradient::read) != mod.gradients.end();
        if (best != ir::kNoNode && (best_is_learned || !is_learned)) continue;
        best = id;
        best_is_learned = is_learned;
    }
    return best;
}

NodeId copied_bias_of_score(const Mod& mod) {
    const NodeId dense = dense_bias_of_score(mod);
    return dense == ir::kNoNode ? mod.shifted_bias.read : dense;
}

namespace {

// Empty if some element of the buffer is not read.
std::optional<BiasSharing> sharing_of(const Mod& mod, NodeId read) {
    const ir::Node& node = mod.program.graph[read];
    const ir::Buffer& buffer = mod.program.buffers[node.symbol];
    BiasSharing sharing{true, true, true};
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
        const ir::Dim& extent = buffer.dims[i];
        const auto covers = [&](std::uint32_t size) {
            return !extent.is_constant() && extent.size == size;
        };
        switch (mod.program.graph[node.operands[i]].op) {
        case Op::b:
            if (!covers(ir::kB)) return {};
            sharing.batches = false;
            break;
        case Op::h:
            if (!covers(ir::kH)) return {};
            sharing.heads = sharing.group = false;
            break;
        case Op::h_kv:
            if (!covers(ir::kHKv)) return {};
            sharing.heads = false;
            break;
        case Op::q_idx:
            if (!covers(ir::kQLen)) return {};
            break;
        case Op::kv_idx:
            if (!covers(ir::kKvLen)) return {};
            break;
        default:
            if (!extent.is_constant() || extent.constant != 1) return {};
        }
    }
    return sharing;
}

} // namespace

bool are_biases_of_scores(const Mod& mod) {
    const auto uses_score = [&](NodeId id) {
        return mod.dependence[id].has(analysis::Dependence::score);
    };
    return std::ranges::all_of(mod.gradients, [&](const ReadGradient& gradient) {
        const GradientSum sum = gradient_sum(mod, gradient);
        if (sum == GradientSum::dense_bias) return is_gradient_of_score(mod, gradient);
        if (sum == GradientSum::row || is_of_d_scores(sum)) return true;
        return !uses_score(mod.d_score) && !uses_score(gradient.partial);
    });
}

bool are_biases_narrow(const Mod& mod) {
    return are_biases_of_scores(mod) &&
           std::ranges::all_of(mod.gradients, [&](const ReadGradient& gradient) {
               const std::uint32_t buffer = mod.program.graph[gradient.read].symbol;
               return gradient_sum(mod, gradient) != GradientSum::dense_bias ||
                      size_of(mod.program.buffers[buffer].dtype) == 2;
           });
}

std::optional<BiasSharing> sharing_of_biases(const Mod& mod) {
    const ir::Node& mask = mod.program.graph[mod.mask];
    if (mask.op != Op::const_bool || mask.integer == 0) return {};
    std::optional<BiasSharing> all;
    for (const ReadGradient& gradient : mod.gradients) {
        if (gradient_sum(mod, gradient) != GradientSum::dense_bias) continue;
        // Gradients of other reads of the buffer would be added to elements that have not been
        // stored.
        const auto reads = std::ranges::count_if(mod.gradients, [&](const ReadGradient& other) {
            return mod.program.graph[other.read].symbol == mod.program.graph[gradient.read].symbol;
        });
        const auto sharing = sharing_of(mod, gradient.read);
        const bool has_sinks = has_sink_gradient(mod, mod.program.graph[gradient.read].symbol);
        if (!sharing || reads != 1 || has_sinks || (all && *all != *sharing)) return {};
        all = sharing;
    }
    return all;
}

} // namespace flexc::passes
