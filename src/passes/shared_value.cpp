#include "passes/shared_value.h"

#include <vector>

#include "passes/cost.h"

namespace flexc::passes {

using analysis::Dependence;
using ir::NodeId;

NodeId shared_value(const Mod& mod) {
    constexpr int kLookup = 4; // instructions; it comes from shared memory
    std::vector<NodeId> values;
    ir::visit_from(mod.program.graph, std::vector{mod.score}, [&](NodeId id) {
        const Dependence used = mod.dependence[id];
        if (mod.place[id] != Place::element) return false;
        if (mod.program.graph[id].type != ir::Type::real || mod.counters[id] != ir::kNoNode ||
            used.has(Dependence::b) || used.has(Dependence::score))
            return true;
        if (costs_more(mod, id, kLookup)) values.push_back(id);
        return false;
    });
    return values.size() == 1 ? values.front() : ir::kNoNode;
}

} // namespace flexc::passes
