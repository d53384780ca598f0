#include "passes/facts.h"

#include "analysis/distance.h"
#include "passes/hoist.h"
#include "passes/roots.h"

namespace flexc::passes {

void find_facts(Mod& mod) {
    const ir::Graph& graph = mod.program.graph;
    mod.dependence = analysis::dependences(graph);
    mod.counters = ir::counters_of(graph);
    mod.affine = analysis::affine_forms(graph, mod.dependence);
    mod.of_distance = analysis::of_distance(graph, mod.dependence, mod.affine);
    mod.key_uses = analysis::key_uses(graph);
    mod.ranges = analysis::ranges(mod.program);
    for (const ir::NodeId read : mod.inside_reads)
        mod.ranges.in_range[read].assign(graph[read].operands.size(), true);
    mod.place = hoist(mod.dependence, mod.counters);
    find_captured_reads(mod);
}

void find_facts_since(Mod& mod, std::size_t known) {
    if (mod.program.graph.size() == known) return;
    mod.order = ir::reachable(mod.program.graph, root_nodes(mod));
    find_facts(mod);
}

} // namespace flexc::passes
