#include "passes/cost.h"

#include <algorithm>
#include <vector>

namespace flexc::passes {

using ir::Op;

int instructions_of(Op op, bool is_fast, bool is_wide) {
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
    case Op::sqrt: return 12;
    case Op::pow: return 80;
    case Op::sin:
    case Op::cos: return 24;
    case Op::tan: return 60;
    case Op::tanh: return 14;
    case Op::sigmoid: return is_fast ? 5 : 20;
    case Op::softplus: return 34;
    case Op::erf: return 30;
    case Op::ifloordiv:
    case Op::imod: return is_wide ? 80 : 20;
    case Op::ipow: return 40;
    case Op::read: return 6;
    default: return is_wide ? 2 : 1;
    }
}

bool costs_more(const Mod& mod, ir::NodeId id, int instructions) {
    std::vector<ir::NodeId> seen = {id};
    int cost = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
        const ir::Node& node = mod.program.graph[seen[i]];
        if (mod.place[seen[i]] != Place::element) continue;
        if (node.op == Op::read) return true;
        if (!ir::info(node.op).is_leaf()) cost += instructions_of(node.op, true, false);
        if (cost > instructions) return true;
        for (const ir::NodeId operand : node.operands)
            if (std::ranges::find(seen, operand) == seen.end()) seen.push_back(operand);
    }
    return false;
}

} // namespace flexc::passes
