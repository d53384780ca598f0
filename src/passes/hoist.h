// Decides where each value is computed: as far outside of the loops as its operands allow. Values
// that change with the counter of a sum are computed with the sum and count as values of an
// element.
#pragma once

#include <vector>

#include "analysis/dependence.h"
#include "passes/mod.h"

namespace flexc::passes {

Place place_of(analysis::Dependence dependence);
std::vector<Place> hoist(const std::vector<analysis::Dependence>& dependence,
                         const std::vector<ir::NodeId>& counters);

} // namespace flexc::passes
