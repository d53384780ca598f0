// Shared by the tests of the front end.
#pragma once

#include <string>
#include <vector>

#include "front/compile_text.h"
#include "ir/interp.h"

namespace flexc::front {

inline Output compile(const std::string& text) {
    return compile_text(
        {.source = dsl::Source("test", text), .buffers = {}, .params = {}, .mask_mod = ""});
}

inline std::string first_message(const Output& output) {
    return output.diagnostics.empty() ? "" : output.diagnostics[0].message;
}

inline std::string first_message(const std::string& text) { return first_message(compile(text)); }

// A node as nested calls: add(score, slopes[h]).
inline std::string spell(const ir::Program& program, ir::NodeId id) {
    const ir::Node& node = program.graph[id];
    const auto list = [&] {
        std::string text;
        for (const ir::NodeId operand : node.operands)
            text += (text.empty() ? "" : ", ") + spell(program, operand);
        return text;
    };
    switch (node.op) {
    case ir::Op::const_bool: return node.integer != 0 ? "true" : "false";
    case ir::Op::const_int: return std::to_string(node.integer);
    case ir::Op::const_real: {
        std::string text = std::to_string(node.real);
        text.erase(text.find_last_not_of('0') + 1);
        return text;
    }
    case ir::Op::size: return program.sizes[node.symbol];
    case ir::Op::param: return program.params[node.symbol].name;
    case ir::Op::read: return program.buffers[node.symbol].name + "[" + list() + "]";
    default: break;
    }
    const std::string name(ir::info(node.op).name);
    return node.operands.empty() ? name : name + "(" + list() + ")";
}

// The score_mod or the mask_mod, or what is wrong.
inline std::string score_of(const std::string& text) {
    const Output output = compile(text);
    return output.program ? spell(*output.program, output.program->score) : output.rendered;
}
inline std::string mask_of(const std::string& text) {
    const Output output = compile(text);
    return output.program ? spell(*output.program, output.program->mask) : output.rendered;
}

} // namespace flexc::front
