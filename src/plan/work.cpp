#include "plan/work.h"

#include <algorithm>
#include <vector>

namespace flexc::plan {

using ir::Op;

int instructions_of(Op op, bool is_fast, bool is_wide) {
    switch (op) {
    case Op::fdiv: return is_fast ? 3 : 12;
    case Op::ffloordiv: return 16;
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

bool is_large(const passes::Mod& mod) {
    const ir::Graph& graph = mod.program.graph;
    const auto count = [&](const std::vector<ir::NodeId>& roots) {
        return std::ranges::count_if(ir::reachable(graph, roots), [&](ir::NodeId id) {
            return graph[id].op == Op::read || !ir::info(graph[id].op).is_leaf();
        });
    };
    std::vector<ir::NodeId> roots = {mod.score};
    if (mod.d_score != ir::kNoNode) roots.push_back(mod.d_score);
    for (const passes::ReadGradient& gradient : mod.gradients)
        roots.push_back(gradient.partial);
    if (count(roots) > kMostScoreOperations) return true;
    roots.push_back(mod.mask);
    return count(roots) > kMostOperations;
}

bool is_long(const passes::Mod& mod, std::span<const ir::NodeId> roots) {
    const ir::Graph& graph = mod.program.graph;
    int instructions = 0;
    for (const ir::NodeId id : ir::reachable(graph, roots)) {
        const Op op = graph[id].op;
        const bool is_computed = op == Op::read || !ir::info(op).is_leaf();
        if (is_computed && mod.place[id] == passes::Place::element)
            instructions += instructions_of(op, true, false);
    }
    return instructions > kMostWrittenOut;
}

} // namespace flexc::plan
