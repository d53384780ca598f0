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

// Gain of an absolute error up to which a rough sigmoid is precise enough.
constexpr double kMostGain = 64;

} // namespace

std::vector<Precision> precisions(const Mod& mod, Precision most) {
    const ir::Graph& graph = mod.program.graph;
    std::vector<Precision> found(graph.size(), most);
    std::vector<double> gain(graph.size(), 1);
    // Visit users before their operands.
    for (NodeId id = graph.size(); id-- > 0;) {
        const ir::Node& node = graph[id];
        if (mod.place[id] != Place::element || (node.op == Op::sigmoid && gain[id] > kMostGain))
            found[id] = std::min(found[id], Precision::fast);
        for (std::size_t i = 0; i < node.operands.size(); ++i) {
            const NodeId operand = node.operands[i];
            const Precision bears = is_step(node.op) ? Precision::exact
                                    : keeps_error(node.op, i)
                                        ? found[id]
                                        : std::min(found[id], Precision::fast);
            found[operand] = std::min(found[operand], bears);
            gain[operand] = std::max(gain[operand], gain[id] * gain_of(graph, node, i));
        }
    }
    return found;
}

} // namespace flexc::passes
