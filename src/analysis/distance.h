// Finds values that use q and kv through their difference alone.
#pragma once

#include <vector>

#include "analysis/affine.h"
#include "analysis/dependence.h"
#include "ir/graph.h"

namespace flexc::analysis {

// Returns for each node whether moving both positions by the same amount leaves it unchanged. False
// for values that use the score.
std::vector<bool> of_distance(const ir::Graph& graph, const std::vector<Dependence>& dependence,
                              const std::vector<AffineForm>& forms);
// Adds entries for nodes that were made since.
void extend_of_distance(std::vector<bool>& of_distance, const ir::Graph& graph,
                        const std::vector<Dependence>& dependence,
                        const std::vector<AffineForm>& forms);

} // namespace flexc::analysis
