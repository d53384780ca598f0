#include "ir/print.h"

#include <array>
#include <charconv>
#include <cmath>

namespace flexc::ir {

namespace {

std::string payload(const Program& program, const Node& node) {
    switch (node.op) {
    case Op::const_bool: return node.integer != 0 ? " true" : " false";
    case Op::const_int: return " " + std::to_string(node.integer);
    case Op::const_real: return " " + print_real(node.real);
    case Op::size: return " " + program.sizes[node.symbol];
    case Op::param: return " " + program.params[node.symbol].name;
    case Op::read: return " " + program.buffers[node.symbol].name;
    default: return "";
    }
}

std::string declarations(const Program& program) {
    std::string text;
    for (std::size_t i = kStandardSizes; i < program.sizes.size(); ++i)
        text += "size " + program.sizes[i] + "\n";
    for (const Buffer& buffer : program.buffers)
        text += "buffer " + buffer.name + ": " + std::string(name(buffer.dtype)) +
                print_dims(program, buffer) + (buffer.grad ? " grad\n" : "\n");
    for (const Param& param : program.params)
        text += "param " + param.name + ": " + std::string(name(param.type)) +
                (param.has_default ? " = " + print_real(param.default_value) : "") + "\n";
    return text;
}

} // namespace

std::string print_real(double value) {
    if (std::isnan(value)) return "nan";
    std::array<char, 40> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    return std::string(digits.data(), end);
}

std::string print_dims(const Program& program, const Buffer& buffer) {
    std::string text = "[";
    for (const Dim& dim : buffer.dims) {
        if (text.size() > 1) text += ", ";
        text += dim.is_constant() ? std::to_string(dim.constant) : program.sizes[dim.size];
    }
    return text + "]";
}

std::string print(const Program& program, std::span<const NamedRoot> roots) {
    std::vector<NodeId> wanted;
    for (const NamedRoot& root : roots)
        wanted.push_back(root.node);
    std::string text = declarations(program);
    std::vector<std::size_t> number(program.graph.size());
    std::size_t next = 0;
    for (NodeId id : reachable(program.graph, wanted)) {
        const Node& node = program.graph[id];
        number[id] = next++;
        text += "%" + std::to_string(number[id]) + " = " + std::string(info(node.op).name) +
                payload(program, node);
        for (std::size_t i = 0; i < node.operands.size(); ++i)
            text += (i == 0 ? " %" : ", %") + std::to_string(number[node.operands[i]]);
        text += " : " + std::string(name(node.type)) + "\n";
    }
    for (const NamedRoot& root : roots)
        if (root.node != kNoNode)
            text += root.name + " = %" + std::to_string(number[root.node]) + "\n";
    return text;
}

std::string print(const Program& program) {
    std::vector<NamedRoot> roots = {{"score", program.score}, {"mask", program.mask}};
    if (program.sink != kNoNode) roots.push_back({"sink", program.sink});
    return print(program, roots);
}

} // namespace flexc::ir
