#include "passes/simplify.h"

#include <algorithm>
#include <bit>

#include "ir/interp.h"

namespace flexc::passes {

using ir::NodeId;
using ir::Op;

namespace {

// Rules see complete operands, so one round nearly always suffices.
constexpr int kMaxRounds = 4;

// `and` and `or` are not reordered: an operand guards the reads in later ones.
bool is_commutative(Op op) {
    switch (op) {
    case Op::fadd:
    case Op::fmul:
    case Op::fmin:
    case Op::fmax:
    case Op::iadd:
    case Op::imul:
    case Op::imin:
    case Op::imax:
    case Op::iand:
    case Op::ior:
    case Op::ixor:
    case Op::feq:
    case Op::fne:
    case Op::ieq:
    case Op::ine:
    case Op::bxor: return true;
    default: return false;
    }
}

} // namespace

NodeId Builder::real(double value, dsl::Span span) {
    return graph_.real(static_cast<double>(static_cast<float>(value)), span);
}

std::optional<double> Builder::real_constant(NodeId id) const {
    if (graph_[id].op != Op::const_real) return {};
    return graph_[id].real;
}

std::optional<std::int64_t> Builder::integer_constant(NodeId id) const {
    if (graph_[id].op != Op::const_int) return {};
    return graph_[id].integer;
}

std::optional<bool> Builder::boolean_constant(NodeId id) const {
    if (graph_[id].op != Op::const_bool) return {};
    return graph_[id].integer != 0;
}

bool Builder::is_real(NodeId id, double value) const { return real_constant(id) == value; }
bool Builder::is_integer(NodeId id, std::int64_t value) const {
    return integer_constant(id) == value;
}
bool Builder::is_boolean(NodeId id, bool value) const { return boolean_constant(id) == value; }

bool Builder::is_constant(NodeId id) const {
    const Op op = graph_[id].op;
    return op == Op::const_real || op == Op::const_int || op == Op::const_bool;
}

std::optional<NodeId> Builder::fold(Op op, std::span<const NodeId> operands, dsl::Span span) {
    std::vector<ir::Value<double>> values;
    for (NodeId operand : operands) {
        if (!is_constant(operand)) return {};
        const ir::Node& node = graph_[operand];
        values.push_back({node.integer != 0, node.integer, node.real});
    }
    const ir::Value<double> value = ir::apply<double>(op, values);
    switch (ir::type_of_letter(ir::info(op).signature.back())) {
    case ir::Type::boolean: return boolean(value.boolean, span);
    case ir::Type::integer: return integer(value.integer, span);
    case ir::Type::real: return real(value.real, span);
    }
    return {};
}

// Sums of zeros, and of the ones that derivatives leave, need no loop.
NodeId Builder::sum(NodeId counter, NodeId term, dsl::Span span) {
    const auto first = integer_constant(operand(counter, 0)),
               end = integer_constant(operand(counter, 1));
    const bool is_zero =
        is_integer(term, 0) || is_real(term, 0) || (first && end && *end <= *first);
    if (is_zero) return graph_[term].type == ir::Type::real ? real(0, span) : integer(0, span);
    if (first && end && is_constant(term)) {
        if (auto number = integer_constant(term))
            return apply(Op::imul, {integer(*end - *first, span), term}, span);
        return apply(Op::fmul, {real(static_cast<double>(*end - *first), span), term}, span);
    }
    return graph_.sum(counter, term, span);
}

NodeId Builder::apply(Op op, std::vector<NodeId> operands, dsl::Span span) {
    if (auto folded = fold(op, operands, span)) return *folded;
    if (is_commutative(op)) {
        auto key = [&](NodeId id) { return std::pair(is_constant(id), id); };
        if (key(operands[1]) < key(operands[0])) std::swap(operands[0], operands[1]);
    }
    for (auto* rules : {simplify_real, simplify_integer, simplify_logic})
        if (auto simpler = rules(*this, op, operands)) return *simpler;
    return graph_.apply(op, std::move(operands), span);
}

namespace {

ir::Graph rebuild(const ir::Graph& old, std::span<NodeId* const> roots) {
    ir::Graph graph;
    Builder build(graph);
    std::vector<NodeId> wanted;
    for (const NodeId* root : roots)
        wanted.push_back(*root);
    std::vector<NodeId> renamed(old.size(), ir::kNoNode);
    for (NodeId id : ir::reachable(old, wanted)) {
        const ir::Node& node = old[id];
        if (node.op == Op::const_real) {
            renamed[id] = build.real(node.real, node.span);
        } else if (node.op == Op::sum) {
            renamed[id] =
                build.sum(renamed[node.operands[0]], renamed[node.operands[1]], node.span);
        } else if (ir::info(node.op).is_leaf()) {
            renamed[id] = ir::copy_node(graph, node, renamed);
        } else {
            std::vector<NodeId> operands;
            for (NodeId operand : node.operands)
                operands.push_back(renamed[operand]);
            renamed[id] = build.apply(node.op, std::move(operands), node.span);
        }
    }
    for (NodeId* root : roots)
        if (*root != ir::kNoNode) *root = renamed[*root];
    return graph;
}

bool same(const ir::Graph& a, const ir::Graph& b) {
    if (a.size() != b.size()) return false;
    for (NodeId id = 0; id < a.size(); ++id)
        if (a[id].op != b[id].op || a[id].symbol != b[id].symbol ||
            a[id].integer != b[id].integer || a[id].operands != b[id].operands ||
            std::bit_cast<std::uint64_t>(a[id].real) != std::bit_cast<std::uint64_t>(b[id].real))
            return false;
    return true;
}

} // namespace

void simplify(ir::Program& program, std::span<NodeId* const> roots) {
    for (int round = 0; round < kMaxRounds; ++round) {
        ir::Graph next = rebuild(program.graph, roots);
        const bool stable = same(next, program.graph);
        program.graph = std::move(next);
        if (stable) break;
    }
}

} // namespace flexc::passes
