#include "passes/row_gradient.h"

#include <vector>

namespace flexc::passes {

using analysis::Dependence;
using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

bool is_of_row(Dependence uses) {
    return !uses.has(Dependence::kv) && !uses.has(Dependence::score);
}

// Returns for each node whether it is factor * score + addend, both the same for a whole row.
std::vector<bool> lines_of_row(const ir::Graph& graph, const std::vector<Dependence>& uses) {
    std::vector<bool> lines(graph.size());
    for (NodeId id = 0; id < graph.size(); ++id) {
        const std::vector<NodeId>& operands = graph[id].operands;
        const auto is_line = [&](std::size_t i) { return static_cast<bool>(lines[operands[i]]); };
        const auto same = [&](std::size_t i) { return is_of_row(uses[operands[i]]); };
        const auto find = [&] {
            if (!uses[id].has(Dependence::score)) return is_of_row(uses[id]);
            switch (graph[id].op) {
            case Op::score: return true;
            case Op::fneg: return is_line(0);
            case Op::fadd:
            case Op::fsub: return is_line(0) && is_line(1);
            case Op::fmul: return (is_line(0) && same(1)) || (same(0) && is_line(1));
            case Op::fdiv: return is_line(0) && same(1);
            case Op::fselect: return same(0) && is_line(1) && is_line(2);
            default: return false;
            }
        };
        lines[id] = find();
    }
    return lines;
}

} // namespace

void find_row_gradients(Mod& mod, bool rows_are_whole) {
    const ir::Graph& graph = mod.program.graph;
    const std::vector<Dependence>& uses = mod.dependence;
    const std::vector<bool> lines = lines_of_row(graph, uses);
    mod.is_line_of_row = lines[mod.score];
    for (ReadGradient& gradient : mod.gradients) {
        if (mod.counters[gradient.read] != kNoNode || !is_of_row(uses[gradient.read])) continue;
        gradient.is_of_row = rows_are_whole && is_of_row(uses[gradient.partial]);
        gradient.is_line_of_row = lines[gradient.partial];
    }
}

} // namespace flexc::passes
