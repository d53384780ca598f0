// Gradients of reads as multiples of the score's: where the factor is a function of distances, sums
// over diagonals are all that the gradient needs of the elements, and where it is one number for a
// head, sums of any kind.
#pragma once

#include "passes/mod.h"

namespace flexc::passes {

// Returns the factor by which d loss / d score, summed over elements, is the gradient of what was
// read. It does not use the score. kNoNode if there is no such factor. Adds nodes to the mod's
// graph; find_facts() must follow.
ir::NodeId gradient_factor(Mod& mod, const ReadGradient& gradient);

// Fills ReadGradient::sum_factor for reads by distance, for tables, for reads of whole heads whose
// product would cost each element much, and for the reads of sums' terms if all of them have a
// factor. Uses the mod's facts, and finds them again if it adds nodes. divides: if d score_mod / d
// score is not a factor but one number for a head, it may be divided by; it is then kept away from
// 0, so kernels whose dS has less range than f32 must not ask for this.
void find_sum_factors(Mod& mod, bool divides);

} // namespace flexc::passes
