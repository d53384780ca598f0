#include "passes/shifted_read.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <span>
#include <utility>

#include "passes/captured_read.h"
#include "passes/dense_bias.h"
#include "passes/facts.h"
#include "passes/simplify.h"
#include "passes/table_gradient.h"

namespace flexc::passes {

using analysis::kInsideHead;
using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

bool is_read_for_elements(const Mod& mod, NodeId id) {
    const ir::Node& node = mod.program.graph[id];
    return node.op == Op::read && node.type == ir::Type::real && !node.operands.empty() &&
           mod.place[id] == Place::element && mod.counters[id] == kNoNode && !mod.of_distance[id];
}

bool is_proven(const Mod& mod, NodeId read, std::size_t index) {
    const std::vector<bool>& proven = mod.ranges.in_range[read];
    return index < proven.size() && proven[index];
}

// An index without its clamp: at most one min and one max.
struct Unclamped {
    NodeId index = kNoNode, least = kNoNode, most = kNoNode;
};
class Unclamper {
  public:
    explicit Unclamper(Mod& mod) : mod_(mod), build_(mod.program.graph) {}

    // Nothing if there are two clamps of one kind.
    std::optional<Unclamped> unclamp(NodeId id) {
        const Op op = build_[id].op;
        const std::vector<NodeId> operands = build_[id].operands; // the graph may grow
        switch (op) {
        case Op::iadd:
            for (const std::size_t side : {0u, 1u})
                if (is_of_head(operands[side]))
                    return mapped(operands[1 - side], false, [&](NodeId x) {
                        return build_.apply(Op::iadd, {x, operands[side]});
                    });
            break;
        case Op::isub:
            if (is_of_head(operands[1]))
                return mapped(operands[0], false,
                              [&](NodeId x) { return build_.apply(Op::isub, {x, operands[1]}); });
            if (is_of_head(operands[0]))
                return mapped(operands[1], true,
                              [&](NodeId x) { return build_.apply(Op::isub, {operands[0], x}); });
            break;
        case Op::ineg:
            return mapped(operands[0], true, [&](NodeId x) { return build_.apply(Op::ineg, {x}); });
        case Op::imin:
        case Op::imax:
            for (const std::size_t side : {0u, 1u})
                if (is_of_head(operands[side]))
                    return clamped(operands[1 - side], op, operands[side]);
            break;
        default: break;
        }
        return Unclamped{.index = id};
    }

  private:
    bool is_of_head(NodeId id) const { return (mod_.dependence[id].bits & kInsideHead) == 0; }
    template <typename Map> std::optional<Unclamped> mapped(NodeId id, bool descends, Map map) {
        auto inside = unclamp(id);
        if (!inside) return {};
        inside->index = map(inside->index);
        for (NodeId* const bound : {&inside->least, &inside->most})
            if (*bound != kNoNode) *bound = map(*bound);
        if (descends) std::swap(inside->least, inside->most);
        return inside;
    }
    std::optional<Unclamped> clamped(NodeId id, Op op, NodeId bound) {
        auto inside = unclamp(id);
        if (!inside) return {};
        NodeId& own = op == Op::imin ? inside->most : inside->least;
        NodeId& other = op == Op::imin ? inside->least : inside->most;
        if (own != kNoNode) return {};
        own = bound;
        // If the bounds have crossed, the outer clamp wins.
        if (other != kNoNode) other = build_.apply(op, {other, bound});
        return inside;
    }

    Mod& mod_;
    Builder build_;
};

std::optional<ShiftedRead> shifted_read(Mod& mod, NodeId id) {
    const CapturedRead* captured = captured_read(mod, id);
    if (captured == nullptr || !captured->is_whole() || !is_read_for_elements(mod, id)) return {};
    if (captured->read_class != ReadClass::shifted && captured->read_class != ReadClass::dense_bias)
        return {};
    const std::vector<ShiftedIndex>& shifts = captured->pieces[0].shifts;
    const std::size_t last = shifts.size() - 1;
    ShiftedRead shifted{.read = id};
    bool queries = false, keys = false; // are in other indices
    for (std::size_t i = 0; i < last; ++i) {
        if (shifts[i].is_clamped() || !is_proven(mod, id, i)) return {};
        queries |= shifts[i].q.constant != 0;
        keys |= shifts[i].kv.constant != 0;
    }
    const ShiftedIndex& along = shifts[last];
    const auto is_step = [](const analysis::Product& gain) {
        return gain.factors.empty() && std::abs(gain.constant) <= 1;
    };
    if (!is_step(along.q) || !is_step(along.kv)) return {};
    shifted.query_step = static_cast<int>(along.q.constant);
    shifted.key_step = static_cast<int>(along.kv.constant);
    if (!keys && shifted.key_step != 0)
        shifted.by_key = false;
    else if (!queries && shifted.query_step != 0)
        shifted.by_key = true;
    else
        return {};
    const NodeId index = mod.program.graph[id].operands[last];
    const auto unclamped = Unclamper(mod).unclamp(index);
    if (!unclamped) return {};
    shifted.index = unclamped->index;
    shifted.least = unclamped->least;
    shifted.most = unclamped->most;
    const bool is_clamped = shifted.is_clamped();
    // A clamped index must be inside the buffer.
    if (is_clamped != along.is_clamped() || (is_clamped && !is_proven(mod, id, last))) return {};
    return shifted;
}

// Recognizes a sum of constant multiples of reads.
class ShiftedSum {
  public:
    ShiftedSum(const ir::Graph& graph, const std::vector<ShiftedRead>& reads)
        : graph_(graph), reads_(reads), factors_(reads.size()) {}

    const std::vector<double>& factors() const { return factors_; }
    // Adds `factor` times the node; false if it is no such sum.
    bool add(NodeId id, double factor) {
        constexpr int kMostTerms = 64; // shared expressions are walked once for each use
        if (++terms_ > kMostTerms) return false;
        const auto read = std::ranges::find(reads_, id, &ShiftedRead::read);
        if (read != reads_.end()) {
            factors_[static_cast<std::size_t>(read - reads_.begin())] += factor;
            return true;
        }
        const ir::Node& node = graph_[id];
        switch (node.op) {
        case Op::fadd: return add(node.operands[0], factor) && add(node.operands[1], factor);
        case Op::fsub: return add(node.operands[0], factor) && add(node.operands[1], -factor);
        case Op::fneg: return add(node.operands[0], -factor);
        case Op::fmul:
            for (const std::size_t side : {0u, 1u}) {
                const ir::Node& multiple = graph_[node.operands[side]];
                if (multiple.op == Op::const_real)
                    return add(node.operands[1 - side], factor * multiple.real);
            }
            return false;
        case Op::fdiv: {
            const ir::Node& divisor = graph_[node.operands[1]];
            return divisor.op == Op::const_real && add(node.operands[0], factor / divisor.real);
        }
        default: return false;
        }
    }

  private:
    const ir::Graph& graph_;
    const std::vector<ShiftedRead>& reads_;
    std::vector<double> factors_;
    int terms_ = 0;
};

// Less for reads that gain more from a copy: shifted ones, not dense biases, and narrow elements.
std::pair<bool, std::size_t> order_of_copies(const Mod& mod, const ShiftedRead& read) {
    const DType dtype = mod.program.buffers[mod.program.graph[read.read].symbol].dtype;
    return {!is_copied_as_shifted(mod, read.read), size_of(dtype)};
}

} // namespace

bool is_copied_as_shifted(const Mod& mod, NodeId read) {
    const CapturedRead* captured = captured_read(mod, read);
    if (captured == nullptr) return false;
    return captured->read_class == ReadClass::shifted ||
           (captured->read_class == ReadClass::dense_bias &&
            mod.program.graph[mod.program.graph[read].operands.back()].op != Op::kv_idx);
}

std::vector<ShiftedRead> stage_shifts(Mod& mod, const std::vector<NodeId>& roots,
                                      std::size_t most) {
    const std::vector<NodeId> nodes = ir::reachable(mod.program.graph, roots);
    const auto is_shifted = [&](NodeId id) { return is_copied_as_shifted(mod, id); };
    if (std::ranges::none_of(nodes, is_shifted)) return {};
    // A copy, because attempts add nodes even for reads that turn out not to be shifted.
    Mod staged = mod;
    std::vector<ShiftedRead> result;
    for (const NodeId id : nodes)
        if (const auto shifted = shifted_read(staged, id)) result.push_back(*shifted);
    if (std::ranges::none_of(result, is_shifted, &ShiftedRead::read)) return {};
    if (result.size() > most) {
        std::ranges::stable_sort(
            result, {}, [&](const ShiftedRead& read) { return order_of_copies(mod, read); });
        result.resize(most);
    }
    find_facts(staged);
    mod = std::move(staged);
    return result;
}

bool have_ends(const std::vector<ShiftedRead>& reads) {
    return !reads.empty() && std::ranges::all_of(reads, &ShiftedRead::is_clamped);
}

std::vector<double> factors_of_shifts(const ir::Graph& graph, const std::vector<ShiftedRead>& reads,
                                      NodeId addend) {
    if (reads.empty() || addend == kNoNode) return {};
    ShiftedSum sum(graph, reads);
    const bool is_sum = sum.add(addend, 1) && std::ranges::all_of(sum.factors(), [](double factor) {
                            return std::isfinite(static_cast<float>(factor));
                        });
    return is_sum ? sum.factors() : std::vector<double>{};
}

void find_shifted_reads(Mod& mod) {
    mod.shifted_reads.clear();
    mod.shifted_bias = {};
    if (mod.d_score == kNoNode || !mod.program.is_dense()) return;
    const auto shifted = stage_shifts(mod, {mod.score});
    if (dense_bias_of_score(mod) == kNoNode)
        for (const ShiftedRead& read : shifted)
            if (!read.is_clamped() &&
                (mod.shifted_bias.read == kNoNode ||
                 order_of_copies(mod, read) < order_of_copies(mod, mod.shifted_bias)))
                mod.shifted_bias = read;
    for (ReadGradient& gradient : mod.gradients) {
        gradient.is_shifted =
            !gradient.is_of_row &&
            std::ranges::find(shifted, gradient.read, &ShiftedRead::read) != shifted.end() &&
            has_table_factor(mod, gradient);
        if (gradient.is_shifted) mod.shifted_reads = shifted;
    }
}

} // namespace flexc::passes
