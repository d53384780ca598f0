#include "passes/precision.h"

#include <algorithm>
#include <cmath>

namespace flexc::passes {

using ir::NodeId;
using ir::Op;

namespace {

// Operators whose result may jump because of a rounding error.
bool is_step(Op op) {
    switch (op) {
    case Op::ffloordiv:
    case Op::fmod:
    case Op::fsign:
    case Op::ffloor:
    case Op::fceil:
    case Op::fround:
    case Op::ftrunc:
    case Op::real_to_int:
    case Op::flt:
    case Op::fle:
    case Op::feq:
    case Op::fne: return true;
    default: return false;
    }
}

// Whether an operand's absolute error becomes a relative error of about the same size.
bool is_power_of_constant(Op op) { return op == Op::exp || op == Op::exp2; }

// Whether an operand's absolute error becomes an absolute error of about the same size.
bool keeps_error(Op op, std::size_t operand) {
    switch (op) {
    case Op::fadd:
    case Op::fsub:
    case Op::fmul:
    case Op::fma:
    case Op::fneg:
    case Op::fabs:
    case Op::fmin:
    case Op::fmax:
    case Op::fclamp:
    case Op::tanh:
    case Op::sigmoid:
    case Op::softplus:
    case Op::erf:
    case Op::sin:
    case Op::cos:
    case Op::fselect: return true;
    case Op::fdiv: return operand == 0;
    default: return false;
    }
}

// The factor by which constants magnify an operand's error. For captured factors and scores it is
// 1, as the error then counts relative to the value.
double gain_of(const ir::Graph& graph, const ir::Node& user, std::size_t operand) {
    const auto size_of = [&](std::size_t other) {
        const ir::Node& factor = graph[user.operands[other]];
        return factor.op == Op::const_real ? std::fabs(factor.real) : 1.0;
    };
    switch (user.op) {
    case Op::fmul: return size_of(1 - operand);
    case Op::fma: return operand < 2 ? size_of(1 - operand) : 1;
    case Op::fdiv: return 1 / size_of(1);
    default: return 1;
    }
}

// Gains of an absolute error up to which a rough sigmoid, and a flushed root, are precise enough: a
// flushed root is off by less than 2^-63.
constexpr double kMostGain = 64, kMostGainOfRoot = 0x1p40;

// Returns the precision that a node of precision `own` tolerates in an operand.
Precision tolerated(Op op, std::size_t operand, Precision own) {
    if (is_step(op)) return Precision::exact;
    if (keeps_error(op, operand)) return own;
    if (is_power_of_constant(op) && own != Precision::exact) return Precision::flushed;
    return std::min(own, Precision::fast);
}

} // namespace

std::vector<Precision> precisions(const Mod& mod, Precision most) {
    const ir::Graph& graph = mod.program.graph;
    std::vector<Precision> found(graph.size(), most);
    std::vector<double> gain(graph.size(), 1);
    // Visit users before their operands.
    for (NodeId id = graph.size(); id-- > 0;) {
        const ir::Node& node = graph[id];
        const bool is_magnified = (node.op == Op::sigmoid && gain[id] > kMostGain) ||
                                  (node.op == Op::sqrt && gain[id] > kMostGainOfRoot);
        if (mod.place[id] != Place::element || is_magnified)
            found[id] = std::min(found[id], Precision::fast);
        for (std::size_t i = 0; i < node.operands.size(); ++i) {
            const NodeId operand = node.operands[i];
            found[operand] = std::min(found[operand], tolerated(node.op, i, found[id]));
            const double of_user = is_power_of_constant(node.op) ? 1 : gain[id];
            gain[operand] = std::max(gain[operand], of_user * gain_of(graph, node, i));
        }
    }
    return found;
}

} // namespace flexc::passes
