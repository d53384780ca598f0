// What uses q and kv through their difference alone.
#pragma once

#include <vector>

#include "analysis/dependence.h"
#include "ir/graph.h"

namespace flexc::analysis {

// Whether moving both positions by the same amount changes nothing. Of values that use the score,
// no. `dependence` has an entry for each node that is reached.
bool is_of_distance(const ir::Graph& graph, const std::vector<Dependence>& dependence,
                    ir::NodeId id);

} // namespace flexc::analysis
