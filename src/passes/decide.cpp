#include "passes/decide.h"

#include <array>
#include <optional>
#include <vector>

#include "analysis/interval.h"
#include "analysis/range.h"

namespace flexc::passes {

using analysis::Interval;
using ir::NodeId;
using ir::Op;

namespace {

bool is_within(Interval x, std::int64_t low, std::int64_t high) {
    return x.low >= low && x.high <= high;
}

std::optional<bool> truth(Op op, Interval difference) {
    const bool below = difference.high < 0, above = difference.low > 0;
    const bool not_above = difference.high <= 0, not_below = difference.low >= 0;
    switch (op) {
    case Op::ilt:
        if (below || not_below) return below;
        return {};
    case Op::ile:
        if (not_above || above) return not_above;
        return {};
    case Op::ieq:
    case Op::ine:
        if (below || above) return op == Op::ine;
        if (not_above && not_below) return op == Op::ieq;
        return {};
    default: return {};
    }
}

// Returns the operand that the node always equals, if there is one.
std::optional<NodeId> operand_for(const ir::Node& node, const analysis::Ranges& ranges, NodeId id) {
    const Interval difference = ranges.difference[id];
    auto range = [&](std::size_t position) { return ranges.of_node[node.operands[position]]; };
    switch (node.op) {
    case Op::imin:
    case Op::imax:
        if (difference.high <= 0) return node.operands[node.op == Op::imin ? 0 : 1];
        if (difference.low >= 0) return node.operands[node.op == Op::imin ? 1 : 0];
        return {};
    case Op::iabs:
        if (range(0).low >= 0) return node.operands[0];
        return {};
    case Op::imod:
        if (range(1).low > 0 && is_within(range(0), 0, range(1).low - 1)) return node.operands[0];
        return {};
    default: return {};
    }
}

// Whether the node is max(x, y) - min(x, y), either may be the larger, and x - y cannot overflow:
// then it is abs(x - y).
bool is_absolute_difference(const ir::Graph& graph, const analysis::Ranges& ranges, NodeId id) {
    const ir::Node& node = graph[id];
    if (node.op != Op::isub) return false;
    const ir::Node &most = graph[node.operands[0]], &least = graph[node.operands[1]];
    if (most.op != Op::imax || least.op != Op::imin || most.operands != least.operands)
        return false;
    const Interval difference = ranges.difference[node.operands[0]];
    if (difference.low >= 0 || difference.high <= 0) return false;
    const std::array ends = {ranges.of_node[most.operands[0]], ranges.of_node[most.operands[1]]};
    return !analysis::is_any(analysis::transfer(Op::isub, ends));
}

} // namespace

void decide(ir::Program& program, std::span<NodeId* const> roots) {
    const analysis::Ranges ranges = analysis::ranges(program);
    const ir::Graph old = std::move(program.graph);
    ir::Graph graph;
    std::vector<NodeId> wanted;
    for (const NodeId* root : roots)
        wanted.push_back(*root);
    std::vector<NodeId> renamed(old.size(), ir::kNoNode);
    for (NodeId id : ir::reachable(old, wanted)) {
        const ir::Node& node = old[id];
        const Interval range = ranges.of_node[id];
        const bool is_operation = !ir::info(node.op).is_leaf();
        if (auto value = truth(node.op, ranges.difference[id]))
            renamed[id] = graph.boolean(*value, node.span);
        else if (auto operand = operand_for(node, ranges, id))
            renamed[id] = renamed[*operand];
        else if (is_absolute_difference(old, ranges, id)) {
            const std::vector<NodeId>& ends = old[node.operands[0]].operands;
            const NodeId difference =
                graph.apply(Op::isub, {renamed[ends[0]], renamed[ends[1]]}, node.span);
            renamed[id] = graph.apply(Op::iabs, {difference}, node.span);
        } else if (is_operation && node.type == ir::Type::integer && range.low == range.high)
            renamed[id] = graph.integer(range.low, node.span);
        else
            renamed[id] = ir::copy_node(graph, node, renamed);
    }
    for (NodeId* root : roots)
        if (*root != ir::kNoNode) *root = renamed[*root];
    program.graph = std::move(graph);
}

} // namespace flexc::passes
