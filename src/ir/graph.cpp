#include "ir/graph.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <functional>

namespace flexc::ir {

namespace {

#define NONE false
#define SELECT true
#define D(...) true
constexpr std::array kOperators = {
#define FLEXC_LEAF(name, type) OpInfo{#name, "", "", "", false},
#define FLEXC_OP(name, signature, derivative, reference, cuda, llvm)                               \
    OpInfo{#name, signature, cuda, llvm, derivative},
#include "ir/ops.def"
};
#undef NONE
#undef SELECT
#undef D

bool same(const Node& a, const Node& b) {
    // Constants compare by bits: NaN is itself, and -0.0 is not 0.0.
    return a.op == b.op && a.type == b.type && a.symbol == b.symbol && a.integer == b.integer &&
           std::bit_cast<std::uint64_t>(a.real) == std::bit_cast<std::uint64_t>(b.real) &&
           a.operands == b.operands;
}

std::size_t hash(const Node& node) {
    std::size_t value = static_cast<std::size_t>(node.op);
    auto mix = [&](std::uint64_t more) {
        value ^=
            std::hash<std::uint64_t>{}(more) + 0x9e3779b97f4a7c15ULL + (value << 6) + (value >> 2);
    };
    mix(static_cast<std::uint64_t>(node.type));
    mix(node.symbol);
    mix(static_cast<std::uint64_t>(node.integer));
    mix(std::bit_cast<std::uint64_t>(node.real));
    for (NodeId operand : node.operands)
        mix(operand);
    return value;
}

} // namespace

const OpInfo& info(Op op) { return kOperators[static_cast<std::size_t>(op)]; }

std::span<const OpInfo> all_operators() { return kOperators; }

Type type_of_letter(char letter) {
    return letter == 'b' ? Type::boolean : letter == 'i' ? Type::integer : Type::real;
}

std::string_view name(Type type) {
    constexpr std::array<std::string_view, 3> kNames = {"bool", "int", "f32"};
    return kNames[static_cast<std::size_t>(type)];
}

NodeId Graph::intern(Node node) {
    const std::size_t key = hash(node);
    auto [begin, end] = index_.equal_range(key);
    for (auto it = begin; it != end; ++it)
        if (same(nodes_[it->second], node)) return it->second;
    const NodeId id = size();
    nodes_.push_back(std::move(node));
    index_.emplace(key, id);
    return id;
}

NodeId Graph::boolean(bool value, dsl::Span span) {
    return intern({.op = Op::const_bool, .type = Type::boolean, .integer = value, .span = span});
}

NodeId Graph::integer(std::int64_t value, dsl::Span span) {
    return intern({.op = Op::const_int, .type = Type::integer, .integer = value, .span = span});
}

NodeId Graph::real(double value, dsl::Span span) {
    return intern({.op = Op::const_real, .type = Type::real, .real = value, .span = span});
}

NodeId Graph::ambient(Op op, dsl::Span span) {
    return intern({.op = op, .type = op == Op::score ? Type::real : Type::integer, .span = span});
}

NodeId Graph::size_of(std::uint32_t size_symbol, dsl::Span span) {
    return intern({.op = Op::size, .type = Type::integer, .symbol = size_symbol, .span = span});
}

NodeId Graph::param(std::uint32_t param_symbol, Type type, dsl::Span span) {
    return intern({.op = Op::param, .type = type, .symbol = param_symbol, .span = span});
}

NodeId Graph::read(std::uint32_t buffer_symbol, Type type, std::vector<NodeId> indices,
                   dsl::Span span) {
    return intern({.op = Op::read,
                   .type = type,
                   .symbol = buffer_symbol,
                   .operands = std::move(indices),
                   .span = span});
}

NodeId Graph::counter(NodeId first, NodeId end, dsl::Span span) {
    return intern(
        {.op = Op::counter, .type = Type::integer, .operands = {first, end}, .span = span});
}

NodeId Graph::sum(NodeId counter, NodeId term, dsl::Span span) {
    return intern(
        {.op = Op::sum, .type = nodes_[term].type, .operands = {counter, term}, .span = span});
}

NodeId Graph::apply(Op op, std::vector<NodeId> operands, dsl::Span span) {
    const Type type = type_of_letter(info(op).signature.back());
    return intern({.op = op, .type = type, .operands = std::move(operands), .span = span});
}

NodeId copy_node(Graph& to, const Node& node, std::span<const NodeId> renamed) {
    std::vector<NodeId> operands;
    operands.reserve(node.operands.size());
    for (NodeId operand : node.operands)
        operands.push_back(renamed[operand]);
    switch (node.op) {
    case Op::const_bool: return to.boolean(node.integer != 0, node.span);
    case Op::const_int: return to.integer(node.integer, node.span);
    case Op::const_real: return to.real(node.real, node.span);
    case Op::score:
    case Op::b:
    case Op::h:
    case Op::h_kv:
    case Op::q_idx:
    case Op::kv_idx:
    case Op::q_row:
    case Op::kv_row:
    case Op::q_len:
    case Op::kv_len: return to.ambient(node.op, node.span);
    case Op::size: return to.size_of(node.symbol, node.span);
    case Op::param: return to.param(node.symbol, node.type, node.span);
    case Op::read: return to.read(node.symbol, node.type, std::move(operands), node.span);
    case Op::counter: return to.counter(operands[0], operands[1], node.span);
    case Op::sum: return to.sum(operands[0], operands[1], node.span);
    default: return to.apply(node.op, std::move(operands), node.span);
    }
}

std::vector<NodeId> reachable(const Graph& graph, std::span<const NodeId> roots) {
    std::vector<bool> needed(graph.size(), false);
    for (NodeId root : roots)
        if (root != kNoNode) needed[root] = true;
    for (NodeId id = graph.size(); id-- > 0;)
        if (needed[id])
            for (NodeId operand : graph[id].operands)
                needed[operand] = true;
    std::vector<NodeId> order;
    for (NodeId id = 0; id < graph.size(); ++id)
        if (needed[id]) order.push_back(id);
    return order;
}

std::vector<NodeId> counters_of(const Graph& graph) {
    std::vector<NodeId> counters(graph.size(), kNoNode);
    for (NodeId id = 0; id < graph.size(); ++id) {
        const Node& node = graph[id];
        for (NodeId operand : node.operands)
            if (node.op != Op::sum || counters[operand] != node.operands[0])
                if (counters[operand] != kNoNode) counters[id] = counters[operand];
        if (node.op == Op::counter) counters[id] = id;
    }
    return counters;
}

std::vector<NodeId> bound_nodes(const Graph& graph, NodeId sum, std::span<const NodeId> counters) {
    const NodeId counter = graph[sum].operands[0], term = graph[sum].operands[1];
    std::vector<bool> needed(term + 1, false);
    needed[term] = counters[term] == counter;
    std::vector<NodeId> nodes;
    for (NodeId id = term + 1; id-- > 0;) {
        if (!needed[id] || id == counter) continue;
        nodes.push_back(id);
        for (NodeId operand : graph[id].operands)
            if (counters[operand] == counter) needed[operand] = true;
    }
    std::ranges::reverse(nodes);
    return nodes;
}

} // namespace flexc::ir
