#include "passes/matrix_read.h"

#include <algorithm>
#include <span>

namespace flexc::passes {

using ir::NodeId;
using ir::Op;

bool is_matrix_read(const Mod& mod, NodeId read) {
    const ir::Graph& graph = mod.program.graph;
    const ir::Node& node = graph[read];
    if (node.op != Op::read || node.operands.empty() || mod.counters[read] != ir::kNoNode)
        return false;
    const DType dtype = mod.program.buffers[node.symbol].dtype;
    const std::vector<bool>& proven = mod.ranges.in_range[read];
    return (dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16) &&
           graph[node.operands.back()].op == Op::kv_idx && proven.size() == node.operands.size() &&
           std::ranges::all_of(proven, [](bool is) { return is; }) &&
           std::ranges::all_of(std::span(node.operands).first(node.operands.size() - 1),
                               [&](NodeId index) {
                                   return graph[index].op == Op::q_idx ||
                                          mod.place[index] <= Place::head;
                               });
}

NodeId matrix_of_score(const Mod& mod) {
    NodeId best = ir::kNoNode;
    bool best_is_learned = false;
    for (const NodeId id : ir::reachable(mod.program.graph, std::span(&mod.score, 1))) {
        if (!is_matrix_read(mod, id) || mod.place[id] != Place::element) continue;
        const bool is_learned = std::ranges::find(mod.gradients, id, &ReadGradient::read) !=
                                mod.gradients.end();
        if (best != ir::kNoNode && (best_is_learned || !is_learned)) continue;
        best = id;
        best_is_learned = is_learned;
    }
    return best;
}

} // namespace flexc::passes
