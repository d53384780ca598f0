// Values that use q and kv by their difference alone: kernels may compute them once for each
// distance of a head instead of for each element.
#pragma once

#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

// Whether each element has a value of its own, by q - kv, b and h alone.
bool is_of_distance(const Mod& mod, ir::NodeId id);

// Real values of the score mod and its derivatives that a backward may have from a table by
// distance: the largest such expressions that cost more than reading a number. In the order of the
// graph.
std::vector<ir::NodeId> distance_values(const Mod& mod);

// Whether the roots read a captured buffer for each element, in what is not among these values.
bool reads_elements_beside(const Mod& mod, const std::vector<ir::NodeId>& roots,
                           const std::vector<ir::NodeId>& values);

} // namespace flexc::passes
