#include "ir/verify.h"

#include <array>
#include <span>

namespace flexc::ir {

namespace {

std::string describe(NodeId id, const Node& node) {
    return "node " + std::to_string(id) + " (" + std::string(info(node.op).name) + "): ";
}

bool is_ambient(Op op) {
    return op == Op::score || op == Op::b || op == Op::h || op == Op::h_kv || op == Op::q_idx ||
           op == Op::kv_idx || op == Op::q_row || op == Op::kv_row || op == Op::q_len ||
           op == Op::kv_len;
}

std::string check_counter(const Graph& graph, const Node& node) {
    if (node.operands.size() != 2) return "a counter has a first value and an end";
    for (NodeId end : node.operands)
        if (graph[end].type != Type::integer) return "an end of the range is not an integer";
    return node.type == Type::integer ? "" : "a counter is an integer";
}

std::string check_sum(const Graph& graph, const Node& node) {
    if (node.operands.size() != 2) return "a sum has a counter and a term";
    const Node &counter = graph[node.operands[0]], &term = graph[node.operands[1]];
    if (counter.op != Op::counter) return "a sum is not over a counter";
    if (term.type == Type::boolean) return "a sum is of truths";
    return node.type == term.type ? "" : "the type is not the term's";
}

// Checks that a term holds no sum that changes with the counter around it.
std::string check_nesting(const Graph& graph, std::span<const NodeId> order) {
    const std::vector<NodeId> counters = counters_of(graph);
    for (NodeId id : order) {
        const Node& node = graph[id];
        if (node.op == Op::sum && counters[id] != kNoNode)
            return describe(id, node) + "it is inside another sum";
        for (NodeId operand : node.operands)
            if (node.op != Op::sum && counters[operand] != kNoNode &&
                counters[operand] != counters[id])
                return describe(id, node) + "it changes with two counters";
    }
    return "";
}

std::string check_leaf(const Program& program, const Node& node) {
    auto expect = [&](Type type) {
        return node.type == type ? "" : "the type should be " + std::string(name(type));
    };
    if (node.op == Op::counter) return check_counter(program.graph, node);
    if (node.op == Op::sum) return check_sum(program.graph, node);
    if (node.op != Op::read && !node.operands.empty()) return "a leaf has operands";
    if (is_ambient(node.op)) return expect(node.op == Op::score ? Type::real : Type::integer);
    switch (node.op) {
    case Op::const_bool:
        if (node.integer != 0 && node.integer != 1) return "a bool is neither 0 nor 1";
        return expect(Type::boolean);
    case Op::const_int: return expect(Type::integer);
    case Op::const_real: return expect(Type::real);
    case Op::size:
        if (node.symbol >= program.sizes.size()) return "no such size";
        return expect(Type::integer);
    case Op::param:
        if (node.symbol >= program.params.size()) return "no such parameter";
        return expect(program.params[node.symbol].type);
    default: break;
    }
    if (node.symbol >= program.buffers.size()) return "no such buffer";
    const Buffer& buffer = program.buffers[node.symbol];
    if (node.operands.size() != buffer.dims.size())
        return std::to_string(node.operands.size()) + " indices for the " +
               std::to_string(buffer.dims.size()) + " dims of '" + buffer.name + "'";
    for (NodeId index : node.operands)
        if (program.graph[index].type != Type::integer) return "an index is not an integer";
    return expect(type_of(buffer.dtype));
}

std::string check_operator(const Graph& graph, const Node& node) {
    const OpInfo& row = info(node.op);
    if (static_cast<int>(node.operands.size()) != row.arity())
        return std::to_string(node.operands.size()) + " operands instead of " +
               std::to_string(row.arity());
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
        const Type expected = type_of_letter(row.signature[i]);
        const Type actual = graph[node.operands[i]].type;
        if (actual != expected)
            return "operand " + std::to_string(i) + " is " + std::string(name(actual)) +
                   " instead of " + std::string(name(expected));
    }
    if (node.type != type_of_letter(row.signature.back())) return "the type is not the operator's";
    return "";
}

std::string check_declarations(const Program& program) {
    if (program.sizes.size() < kStandardSizes) return "the standard sizes are missing";
    for (const Buffer& buffer : program.buffers) {
        for (const Dim& dim : buffer.dims)
            if (!dim.is_constant() && dim.size >= program.sizes.size())
                return "buffer '" + buffer.name + "' has a dim that is no size";
        if (buffer.grad && type_of(buffer.dtype) != Type::real)
            return "buffer '" + buffer.name + "' wants a gradient but is not real";
    }
    return "";
}

} // namespace

std::string verify(const Program& program, std::span<const NodeId> roots) {
    if (std::string message = check_declarations(program); !message.empty()) return message;
    const Graph& graph = program.graph;
    for (NodeId root : roots)
        if (root != kNoNode && root >= graph.size()) return "a root is no node";
    for (NodeId id = 0; id < graph.size(); ++id)
        for (NodeId operand : graph[id].operands)
            if (operand >= id) return describe(id, graph[id]) + "an operand comes after its user";
    const std::vector<NodeId> order = reachable(graph, roots);
    for (NodeId id : order) {
        const Node& node = graph[id];
        const std::string message =
            info(node.op).is_leaf() ? check_leaf(program, node) : check_operator(graph, node);
        if (!message.empty()) return describe(id, node) + message;
    }
    return check_nesting(graph, order);
}

std::string verify(const Program& program) {
    if (program.score == kNoNode || program.mask == kNoNode) return "score or mask is missing";
    const std::array roots = {program.score, program.mask, program.sink};
    if (std::string message = verify(program, roots); !message.empty()) return message;
    if (program.graph[program.score].type != Type::real) return "score is not real";
    if (program.graph[program.mask].type != Type::boolean) return "mask is not bool";
    if (program.sink == kNoNode) return "";
    if (program.graph[program.sink].type != Type::real) return "sink is not real";
    for (NodeId id : reachable(program.graph, std::span(&program.sink, 1)))
        if (program.graph[id].op == Op::score || program.graph[id].op == Op::kv_idx)
            return "sink is not the same for a whole row";
    return "";
}

} // namespace flexc::ir
