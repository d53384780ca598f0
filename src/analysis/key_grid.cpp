#include "analysis/key_grid.h"

#include <algorithm>
#include <optional>

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

// What an integer gains from one column of the grid to the next; nothing where that differs.
std::optional<std::int64_t> column_gain(const ir::Graph& graph, std::span<const KeyUse> uses,
                                        NodeId id, std::int64_t width, int depth) {
    constexpr int kDeepest = 16; // shared expressions are walked once for each use
    if (uses[id] == KeyUse::none) return 0;
    const ir::Node& node = graph[id];
    if (node.op == Op::imod && divisor(graph, id) == width) return 1;
    if (depth == kDeepest || (node.op != Op::iadd && node.op != Op::isub)) return {};
    const auto x = column_gain(graph, uses, node.operands[0], width, depth + 1);
    const auto y = column_gain(graph, uses, node.operands[1], width, depth + 1);
    if (!x || !y) return {};
    return node.op == Op::iadd ? *x + *y : *x - *y;
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
    return column_gain(graph, key_uses(graph, width), id, width, 0).has_value();
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
