#include "analysis/key_grid.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "analysis/dependence.h"

namespace flexc::analysis {

using ir::NodeId;
using ir::Op;

namespace {

// What kv is divided by, where the node is kv // constant or kv % constant.
std::optional<std::int64_t> divisor(const ir::Graph& graph, NodeId id) {
    const ir::Node& node = graph[id];
    if (node.op != Op::ifloordiv && node.op != Op::imod) return {};
    const ir::Node& by = graph[node.operands[1]];
    if (graph[node.operands[0]].op != Op::kv_idx || by.op != Op::const_int || by.integer < 2)
        return {};
    return by.integer;
}

KeyUse joined(KeyUse x, KeyUse y) {
    if (x == KeyUse::none || x == y) return y;
    return y == KeyUse::none ? x : KeyUse::other;
}

// Gains of integers that are sums of one that gains 1, and of what gains nothing.
struct Gains {
    const ir::Graph& graph;
    std::function<bool(NodeId)> is_constant, gains_one;

    std::optional<std::int64_t> of(NodeId id, int depth = 0) const {
        constexpr int kDeepest = 16; // shared expressions are walked once for each use
        if (is_constant(id)) return 0;
        if (gains_one(id)) return 1;
        const ir::Node& node = graph[id];
        if (depth == kDeepest || (node.op != Op::iadd && node.op != Op::isub)) return {};
        const auto x = of(node.operands[0], depth + 1), y = of(node.operands[1], depth + 1);
        if (!x || !y) return {};
        return node.op == Op::iadd ? *x + *y : *x - *y;
    }
};

// Through `op`, kv // width or kv % width.
bool is_linear_by_key(const ir::Graph& graph, NodeId id, std::int64_t width, Op op) {
    const std::vector<KeyUse> uses = key_uses(graph, width);
    const Gains gains{graph, [&](NodeId x) { return uses[x] == KeyUse::none; },
                      [&](NodeId x) { return graph[x].op == op && divisor(graph, x) == width; }};
    return gains.of(id).has_value();
}

} // namespace

std::string_view name(KeyUse use) {
    switch (use) {
    case KeyUse::none: return "none";
    case KeyUse::quotient: return "quotient";
    case KeyUse::remainder: return "remainder";
    case KeyUse::other: return "other";
    }
    return "other";
}

std::vector<KeyUse> key_uses(const ir::Graph& graph, std::int64_t width) {
    std::vector<KeyUse> uses(graph.size(), KeyUse::none);
    for (NodeId id = 0; id < graph.size(); ++id) {
        const ir::Node& node = graph[id];
        if (node.op == Op::kv_idx) uses[id] = KeyUse::other;
        for (const NodeId operand : node.operands)
            uses[id] = joined(uses[id], uses[operand]);
        // kv // (n * width) is (kv // width) // n, and kv % n is (kv % width) % n where n divides
        // width.
        const auto by = divisor(graph, id);
        if (by && node.op == Op::ifloordiv && *by % width == 0) uses[id] = KeyUse::quotient;
        if (by && node.op == Op::imod && width % *by == 0) uses[id] = KeyUse::remainder;
    }
    return uses;
}

bool is_linear_by_column(const ir::Graph& graph, NodeId id, std::int64_t width) {
    return is_linear_by_key(graph, id, width, Op::imod);
}
bool is_linear_by_row(const ir::Graph& graph, NodeId id, std::int64_t width) {
    return is_linear_by_key(graph, id, width, Op::ifloordiv);
}

bool is_linear_by_query(const ir::Graph& graph, NodeId id) {
    const std::vector<Dependence> dependence = dependences(graph);
    const Gains gains{graph, [&](NodeId x) { return !dependence[x].has(Dependence::q); },
                      [&](NodeId x) { return graph[x].op == Op::q_idx; }};
    return gains.of(id).has_value();
}

std::vector<std::int64_t> key_divisors(const ir::Graph& graph, std::span<const NodeId> roots) {
    std::vector<std::int64_t> divisors;
    for (const NodeId id : ir::reachable(graph, roots))
        if (const auto by = divisor(graph, id)) divisors.push_back(*by);
    std::ranges::sort(divisors);
    const auto again = std::ranges::unique(divisors);
    divisors.erase(again.begin(), again.end());
    return divisors;
}

} // namespace flexc::analysis
