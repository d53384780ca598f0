#include "cpu/access.h"

#include <algorithm>

#include "cpu/backend_table.h"
#include "passes/hoist.h"

namespace flexc::cpu {

namespace {

using ir::Op;
using Slope = std::optional<std::int64_t>;

// Coefficients beyond this are of no use and could overflow.
constexpr std::int64_t kMaxSlope = 1 << 20;

Slope bounded(std::int64_t slope) {
    return slope >= -kMaxSlope && slope <= kMaxSlope ? Slope(slope) : std::nullopt;
}

Slope slope_of(const ir::Graph& graph, const ir::Node& node, const std::vector<Slope>& known) {
    if (node.op == Op::kv_idx) return 1;
    if (node.op == Op::score) return std::nullopt;
    bool all_fixed = true;
    for (ir::NodeId operand : node.operands)
        all_fixed = all_fixed && known[operand] == Slope(0);
    if (all_fixed) return 0;
    auto operand = [&](std::size_t i) { return known[node.operands[i]]; };
    switch (node.op) {
    case Op::iadd:
        if (operand(0) && operand(1)) return bounded(*operand(0) + *operand(1));
        break;
    case Op::isub:
        if (operand(0) && operand(1)) return bounded(*operand(0) - *operand(1));
        break;
    case Op::ineg:
        if (operand(0)) return -*operand(0);
        break;
    case Op::imul:
        for (std::size_t i = 0; i < 2; ++i) {
            const ir::Node& factor = graph[node.operands[1 - i]];
            if (operand(i) && factor.op == Op::const_int && bounded(factor.integer))
                return bounded(*operand(i) * factor.integer);
        }
        break;
    default: break;
    }
    return std::nullopt;
}

} // namespace

KvSlopes::KvSlopes(const passes::Mod& mod) {
    const ir::Graph& graph = mod.program.graph;
    slopes_.resize(graph.size());
    for (ir::NodeId id = 0; id < graph.size(); ++id)
        slopes_[id] = slope_of(graph, graph[id], slopes_);
}

int KvSlopes::moving_dim(const ir::Node& read) const {
    int moving = -1;
    for (std::size_t dim = 0; dim < read.operands.size(); ++dim) {
        const Slope slope = of(read.operands[dim]);
        if (!slope) return -1;
        if (*slope == 0) continue;
        if (moving >= 0) return -1;
        moving = static_cast<int>(dim);
    }
    return moving;
}

std::vector<GradientPlan> plan_gradients(const passes::Mod& mod, const KvSlopes& slopes) {
    const ir::Graph& graph = mod.program.graph;
    std::vector<GradientPlan> plans;
    for (const passes::ReadGradient& gradient : mod.gradients) {
        const ir::Node& read = graph[gradient.read];
        GradientPlan plan{gradient, Scatter::element};
        // Of terms, for one value of the counter.
        const bool fixed = std::ranges::all_of(read.operands, [&](ir::NodeId index) {
            return mod.counters[index] == ir::kNoNode
                       ? mod.place[index] <= passes::Place::row
                       : passes::place_of(mod.dependence[index]) <= passes::Place::row;
        });
        const int moving = slopes.moving_dim(read);
        if (fixed)
            plan.scatter = Scatter::row;
        else if (moving >= 0 &&
                 mod.ranges.in_range[gradient.read][static_cast<std::size_t>(moving)])
            plan.scatter = Scatter::vector;
        plans.push_back(plan);
    }
    // Two reads that move with kv may meet in one element in different iterations of the loop.
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
    std::uint32_t common = kSeparatesB | kSeparatesHKv | kSeparatesKv;
    // An index expression stands at the same dim in every read, or two reads of different values of
    // the variable could meet.
    std::vector<std::uint32_t> by_dim;
    for (const passes::ReadGradient& gradient : mod.gradients) {
        const ir::Node& read = graph[gradient.read];
        if (read.symbol != buffer) continue;
        if (by_dim.empty()) by_dim.assign(read.operands.size(), common);
        for (std::size_t dim = 0; dim < read.operands.size(); ++dim) {
            const Op op = graph[read.operands[dim]].op;
            by_dim[dim] &= op == Op::b                     ? kSeparatesB
                           : op == Op::h || op == Op::h_kv ? kSeparatesHKv
                           : op == Op::kv_idx              ? kSeparatesKv
                                                           : 0u;
        }
    }
    std::uint32_t bits = 0;
    for (std::uint32_t dim : by_dim)
        bits |= dim;
    return bits;
}

} // namespace flexc::cpu
