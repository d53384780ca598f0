#include <optional>
#include <utility>

#include "ir/print.h"
#include "passes/describe.h"

namespace flexc::passes {

using ir::NodeId;
using ir::Op;

namespace {

// Beyond these, "..." stands for what follows: shared nodes are written each time.
constexpr int kMaxDepth = 5, kMaxDepthOfReads = 16, kMaxNodes = 400;
constexpr const char* kCounterName = "i"; // terms hold no other sums

std::optional<std::string_view> infix(Op op) {
    switch (op) {
    case Op::fadd:
    case Op::iadd: return " + ";
    case Op::fsub:
    case Op::isub: return " - ";
    case Op::fmul:
    case Op::imul: return " * ";
    case Op::fdiv: return " / ";
    case Op::ffloordiv:
    case Op::ifloordiv: return " // ";
    case Op::fmod:
    case Op::imod: return " % ";
    case Op::pow:
    case Op::ipow: return " ** ";
    case Op::iand: return " & ";
    case Op::ior: return " | ";
    case Op::ixor:
    case Op::bxor: return " ^ ";
    case Op::ishl: return " << ";
    case Op::ishr: return " >> ";
    case Op::flt:
    case Op::ilt: return " < ";
    case Op::fle:
    case Op::ile: return " <= ";
    case Op::feq:
    case Op::ieq: return " == ";
    case Op::fne:
    case Op::ine: return " != ";
    case Op::band: return " and ";
    case Op::bor: return " or ";
    default: return {};
    }
}

std::string_view prefix(Op op) {
    switch (op) {
    case Op::fneg:
    case Op::ineg: return "-";
    case Op::inot: return "~";
    case Op::bnot: return "not ";
    default: return "";
    }
}

std::string_view function(Op op) {
    switch (op) {
    case Op::fabs:
    case Op::iabs: return "abs";
    case Op::fmin:
    case Op::imin: return "min";
    case Op::fmax:
    case Op::imax: return "max";
    case Op::fclamp: return "clamp";
    case Op::fsign:
    case Op::isign: return "sign";
    case Op::ffloor: return "floor";
    case Op::fceil: return "ceil";
    case Op::fround: return "round";
    case Op::ftrunc: return "trunc";
    case Op::bselect:
    case Op::iselect:
    case Op::fselect: return "where";
    case Op::bool_to_int:
    case Op::real_to_int: return "int";
    default: return ir::info(op).name;
    }
}

class Writer {
  public:
    explicit Writer(const ir::Program& program) : program_(program) {}

    // nested: adds parentheses if an operator inside another one needs them.
    std::string write(NodeId id, int depth, bool nested) {
        if (++nodes_ > kMaxNodes) return "...";
        const ir::Node& node = program_.graph[id];
        switch (node.op) {
        case Op::const_bool: return node.integer != 0 ? "true" : "false";
        case Op::const_int: return std::to_string(node.integer);
        case Op::const_real: return ir::print_real(node.real);
        case Op::size: return program_.sizes[node.symbol];
        case Op::param: return program_.params[node.symbol].name;
        case Op::read: return read(node, depth);
        case Op::counter: return kCounterName;
        case Op::sum: return sum(node, depth);
        case Op::int_to_real:
        case Op::bool_to_real: // the language promotes by itself
            return write(node.operands[0], depth, nested);
        default: break;
        }
        if (node.operands.empty()) return std::string(ir::info(node.op).name);
        if (depth >= kMaxDepth) return "...";
        const std::string_view sign = prefix(node.op);
        const auto between = infix(node.op);
        if (sign.empty() && !between)
            return std::string(function(node.op)) + "(" + list(node, depth) + ")";
        std::string text = std::string(sign) + write(node.operands[0], depth + 1, true);
        if (between) {
            text += *between;
            text += write(node.operands[1], depth + 1, true);
        }
        return nested ? "(" + text + ")" : text;
    }

  private:
    std::string read(const ir::Node& node, int depth) {
        const std::string& name = program_.buffers[node.symbol].name;
        if (node.operands.empty()) return name;
        return name + "[" + (depth >= kMaxDepthOfReads ? "..." : list(node, depth)) + "]";
    }

    std::string sum(const ir::Node& node, int depth) {
        if (depth >= kMaxDepth) return "...";
        const ir::Node& range = program_.graph[node.operands[0]];
        std::string text = std::string("sum(") + kCounterName + " in ";
        text += write(range.operands[0], depth + 1, true) + "..";
        text += write(range.operands[1], depth + 1, true) + ": ";
        return text + write(node.operands[1], depth + 1, false) + ")";
    }

    std::string list(const ir::Node& node, int depth) {
        std::string text;
        for (NodeId operand : node.operands)
            text += (text.empty() ? "" : ", ") + write(operand, depth + 1, false);
        return text;
    }

    const ir::Program& program_;
    int nodes_ = 0; // written
};

} // namespace

std::string formula(const ir::Program& program, NodeId id) {
    return Writer(program).write(id, 0, false);
}

} // namespace flexc::passes
