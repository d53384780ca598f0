// Where each value is computed: as far out of the loops as what it uses allows. What changes with
// the counter of a sum is computed with the sum, wherever that is, and counts as an element's.
#pragma once

#include <vector>

#include "analysis/dependence.h"
#include "passes/mod.h"

namespace flexc::passes {

Place place_of(analysis::Dependence dependence);
std::vector<Place> hoist(const std::vector<analysis::Dependence>& dependence,
                         const std::vector<ir::NodeId>& counters);

} // namespace flexc::passes
