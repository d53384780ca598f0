#include "cpu/access.h"

#include <algorithm>

#include "cpu/backend_table.h"
#include "passes/hoist.h"
#include "support/key_layout.h"

namespace flexc::cpu {

using ir::Op;

namespace {

// Returns how much an index increases from one key to the next; nothing if that differs.
std::optional<std::int64_t> slope_of(const passes::Mod& mod, ir::NodeId index) {
    analysis::AffineForm form = mod.affine[index];
    // If keys are in order, their rows increase with kv_idx.
    if (support::key_layout(mod.program.key_layout).is_in_order)
        std::erase_if(form.rest, [&](const analysis::AffineForm::Term& term) {
            if (mod.program.graph[term.node].op != Op::kv_row) return false;
            form.kv += term.coefficient;
            return true;
        });
    return analysis::slope_in_kv(form);
}

} // namespace

int moving_dim(const passes::Mod& mod, const ir::Node& read) {
    int moving = -1;
    for (std::size_t dim = 0; dim < read.operands.size(); ++dim) {
        const auto slope = slope_of(mod, read.operands[dim]);
        if (!slope) return -1;
        if (*slope == 0) continue;
        if (moving >= 0) return -1;
        moving = static_cast<int>(dim);
    }
    return moving;
}

std::vector<GradientPlan> plan_gradients(const passes::Mod& mod) {
    const ir::Graph& graph = mod.program.graph;
    std::vector<GradientPlan> plans;
    for (const passes::ReadGradient& gradient : mod.gradients) {
        const ir::Node& read = graph[gradient.read];
        GradientPlan plan{gradient, Scatter::element};
        // Indices of a sum's term need to be fixed only for one value of the counter.
        const bool fixed = std::ranges::all_of(read.operands, [&](ir::NodeId index) {
            return mod.counters[index] == ir::kNoNode
                       ? mod.place[index] <= passes::Place::row
                       : passes::place_of(mod.dependence[index]) <= passes::Place::row;
        });
        const int moving = moving_dim(mod, read);
        if (fixed)
            plan.scatter = Scatter::row;
        else if (moving >= 0 &&
                 mod.ranges.in_range[gradient.read][static_cast<std::size_t>(moving)])
            plan.scatter = Scatter::vector;
        plans.push_back(plan);
    }
    // Two reads that move with kv may add to the same element in different iterations of the loop.
    for (GradientPlan& plan : plans) {
        if (plan.scatter != Scatter::vector) continue;
        const auto buffer = graph[plan.gradient.read].symbol;
        const auto moving = std::ranges::count_if(plans, [&](const GradientPlan& other) {
            return graph[other.gradient.read].symbol == buffer && other.scatter != Scatter::row;
        });
        if (moving > 1)
            for (GradientPlan& other : plans)
                if (graph[other.gradient.read].symbol == buffer && other.scatter != Scatter::row)
                    other.scatter = Scatter::element;
    }
    return plans;
}

std::uint32_t separation(const passes::Mod& mod, std::uint32_t buffer) {
    const ir::Graph& graph = mod.program.graph;
    // The variable that indexes each dim; every read must use the same one: h of one read and h_kv
    // of another are equal for different heads, which would then add to the same element.
    std::vector<std::optional<Op>> by_dim;
    std::vector<ir::NodeId> reads;
    for (const auto* gradients : {&mod.gradients, &mod.sink_gradients})
        for (const passes::ReadGradient& gradient : *gradients)
            reads.push_back(gradient.read);
    for (const ir::NodeId id : reads) {
        const ir::Node& read = graph[id];
        if (read.symbol != buffer) continue;
        const bool is_first = by_dim.empty();
        by_dim.resize(read.operands.size());
        for (std::size_t dim = 0; dim < read.operands.size(); ++dim) {
            const Op op = graph[read.operands[dim]].op;
            if (is_first)
                by_dim[dim] = op;
            else if (by_dim[dim] != op)
                by_dim[dim] = std::nullopt;
        }
    }
    std::uint32_t bits = 0;
    for (const std::optional<Op>& op : by_dim)
        bits |= op == Op::b                     ? kSeparatesB
                : op == Op::h || op == Op::h_kv ? kSeparatesHKv
                : op == Op::kv_idx              ? kSeparatesKv
                                                : 0u;
    return bits;
}

} // namespace flexc::cpu
