#include "passes/element_sums.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace flexc::passes {

using ir::kNoNode;
using ir::NodeId;
using ir::Op;

std::vector<NodeId> element_sums(const Mod& mod, const std::vector<NodeId>& roots,
                                 std::span<const NodeId> known) {
    const ir::Graph& graph = mod.program.graph;
    std::vector<NodeId> sums;
    ir::visit_from(graph, roots, [&](NodeId id) {
        if (std::ranges::find(known, id) != known.end()) return false;
        if (graph[id].op != Op::sum) return true;
        if (graph[id].type == ir::Type::real && mod.place[id] == Place::element &&
            mod.counters[id] == kNoNode)
            sums.push_back(id);
        return false;
    });
    std::ranges::sort(sums, {}, [&](NodeId id) { return std::pair(graph[id].operands[0], id); });
    return sums;
}

std::vector<NodeId> element_sums(const Mod& mod, const ScoreParts& parts) {
    const NodeId whole = of_elements(mod, parts);
    if (whole == kNoNode) return {};
    std::vector<NodeId> known = parts.key_values;
    known.insert(known.end(), parts.distance_values.begin(), parts.distance_values.end());
    return element_sums(mod, {whole}, known);
}

std::vector<NodeId> entering(const Mod& mod, const std::vector<NodeId>& terms) {
    std::set<NodeId> pending(terms.begin(), terms.end());
    std::vector<NodeId> outside;
    while (!pending.empty()) {
        const NodeId id = *pending.rbegin();
        pending.erase(std::prev(pending.end()));
        const ir::Node& node = mod.program.graph[id];
        if (mod.counters[id] == kNoNode)
            outside.push_back(id);
        else if (node.op != Op::counter)
            pending.insert(node.operands.begin(), node.operands.end());
    }
    return outside;
}

std::vector<NodeId> carried_values(const Mod& mod, const std::vector<NodeId>& terms,
                                   bool uses_score) {
    const ir::Graph& graph = mod.program.graph;
    std::vector<NodeId> carried;
    for (const NodeId id : entering(mod, terms)) {
        if (graph[id].type == ir::Type::real && graph[id].op != Op::score &&
            mod.place[id] == Place::element)
            carried.push_back(id);
        else if (mod.dependence[id].has(analysis::Dependence::score))
            uses_score = true;
    }
    if (uses_score)
        for (NodeId id = 0; id < graph.size(); ++id)
            if (graph[id].op == Op::score) carried.push_back(id);
    return carried;
}

std::vector<NodeId> carried_by_sums(const Mod& mod, const std::vector<NodeId>& sums) {
    std::vector<NodeId> terms;
    for (const NodeId sum : sums)
        terms.push_back(mod.program.graph[sum].operands[1]);
    return carried_values(mod, terms);
}

} // namespace flexc::passes
