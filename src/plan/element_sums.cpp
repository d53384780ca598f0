#include "plan/element_sums.h"

#include "passes/element_sums.h"
#include "passes/term_gradient.h"
#include "plan/work.h"

namespace flexc::plan {

ElementSums element_sums(const passes::Mod& mod, const std::vector<ir::NodeId>& ids) {
    if (is_long(mod, ids)) return {};
    ElementSums sums{.count = static_cast<int>(ids.size()),
                     .carried = static_cast<int>(passes::carried_by_sums(mod, ids).size())};
    for (const ir::NodeId id : ir::reachable(mod.program.graph, ids)) {
        if (mod.program.graph[id].op != ir::Op::read || mod.counters[id] == ir::kNoNode) continue;
        const passes::Place place = passes::place_of_term(mod, id);
        sums.reads_of_queries += place == passes::Place::row;
        sums.reads_of_keys += place == passes::Place::column;
        sums.reads_of_elements += place == passes::Place::element;
    }
    return sums;
}

} // namespace flexc::plan
