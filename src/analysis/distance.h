// What uses q and kv through their difference alone.
#pragma once

#include <vector>

#include "analysis/affine.h"
#include "analysis/dependence.h"
#include "ir/graph.h"

namespace flexc::analysis {

// Of each node, whether moving both positions by the same amount changes nothing. Of values that
// use the score, no.
std::vector<bool> of_distance(const ir::Graph& graph, const std::vector<Dependence>& dependence,
                              const std::vector<AffineForm>& forms);
// Of the nodes that were made since.
void extend_of_distance(std::vector<bool>& of_distance, const ir::Graph& graph,
                        const std::vector<Dependence>& dependence,
                        const std::vector<AffineForm>& forms);

} // namespace flexc::analysis
