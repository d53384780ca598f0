// Values that use q and kv by their difference alone. Kernels may compute them once for each
// distance of a head instead of for each element, and sum what passes through them over diagonals.
#pragma once

#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

// Real values of the score mod and its derivatives that a backward may have from a table by
// distance: the largest such expressions that cost more than reading a number. In the order of the
// graph.
std::vector<ir::NodeId> distance_values(const Mod& mod);

// Whether the roots read a captured buffer for each element, in what is not among these values.
bool reads_elements_beside(const Mod& mod, const std::vector<ir::NodeId>& roots,
                           const std::vector<ir::NodeId>& values);

// Fills ReadGradient::sum_factor: of reads by distance, of tables, and of reads of whole heads
// where each element would compute something dear for them. From the mod's facts, which it finds
// again where it needs new nodes. divides: whether what has d score_mod / d score as no factor may
// be divided by it, where that is one number for a head; it is kept away from 0 then, so that
// kernels that keep dS in less than the range of floats must not.
void find_sum_factors(Mod& mod, bool divides);

} // namespace flexc::passes
