// Where each value is computed: as far out of the loops as what it uses allows.
#pragma once

#include <vector>

#include "analysis/dependence.h"
#include "passes/mod.h"

namespace flexc::passes {

Place place_of(analysis::Dependence dependence);
std::vector<Place> hoist(const std::vector<analysis::Dependence>& dependence);

} // namespace flexc::passes
