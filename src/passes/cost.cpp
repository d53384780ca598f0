#include "passes/cost.h"

namespace flexc::passes {

using ir::Op;

int instructions_of(Op op, Precision precision, bool is_wide) {
    const bool is_fast = precision != Precision::exact;
    const bool is_rough = precision == Precision::rough;
    switch (op) {
    case Op::fdiv: return is_fast ? 3 : 12;
    case Op::ffloordiv: return 60; // with what its exact division calls
    case Op::fmod: return 40;
    case Op::exp: return is_fast ? 2 : 8;
    case Op::exp2:
    case Op::rsqrt: return 5;
    case Op::expm1: return 20;
    case Op::log:
    case Op::log2: return 16;
    case Op::log1p: return 24;
    // Fast ones are counted as exact ones: elements that take roots of sums need registers, too.
    case Op::sqrt: return precision >= Precision::flushed ? 1 : 12;
    case Op::pow: return 80;
    case Op::sin:
    case Op::cos: return 24;
    case Op::tan: return 60;
    case Op::tanh: return is_rough ? 1 : 14;
    case Op::sigmoid: return is_rough ? 3 : is_fast ? 4 : 20;
    case Op::softplus: return is_fast ? 12 : 34;
    case Op::erf: return is_rough ? 6 : 30;
    // Those by reciprocals (launch_divisor.h) count alike: they take fewer instructions, but as
    // many registers, which is what limits on these numbers are for.
    case Op::ifloordiv:
    case Op::imod: return is_wide ? 80 : 20;
    case Op::ipow: return 40;
    case Op::read: return 6;
    default: return is_wide ? 2 : 1;
    }
}

int special_functions_of(Op op, Precision precision) {
    switch (op) {
    case Op::fdiv:
    case Op::exp:
    case Op::exp2:
    case Op::expm1:
    case Op::log2:
    case Op::sqrt:
    case Op::rsqrt:
    case Op::erf:
    case Op::softplus: return 1;
    case Op::pow: return 2;
    case Op::tanh:
    case Op::sigmoid: return precision == Precision::rough ? 1 : 2;
    default: return 0;
    }
}

bool costs_more(const Mod& mod, ir::NodeId id, int instructions) {
    int cost = 0;
    ir::visit_from(mod.program.graph, {id}, [&](ir::NodeId part) {
        if (mod.place[part] != Place::element || cost > instructions) return false;
        const Op op = mod.program.graph[part].op;
        if (op == Op::read)
            cost = instructions + 1;
        else if (!ir::info(op).is_leaf())
            cost += instructions_of(op, Precision::fast, false);
        return true;
    });
    return cost > instructions;
}

} // namespace flexc::passes
