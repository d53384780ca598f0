// Gradients of reads as multiples of the score's: where the factor is a function of distances, sums
// over diagonals are all that the gradient needs of the elements, and where it is one number for a
// head, sums of any kind.
#pragma once

#include "passes/mod.h"

namespace flexc::passes {

// What times d loss / d score, summed over elements, is the gradient of what was read; it does not
// use the score. kNoNode where no such factor is found. Adds nodes to the mod's graph; facts of
// these are found by find_facts().
ir::NodeId gradient_factor(Mod& mod, const ReadGradient& gradient);

// Fills ReadGradient::sum_factor: of reads by distance, of tables, and of reads of whole heads
// where each element would compute something dear for them. From the mod's facts, which it finds
// again where it needs new nodes. divides: whether what has d score_mod / d score as no factor may
// be divided by it, where that is one number for a head; it is kept away from 0 then, so that
// kernels that keep dS in less than the range of floats must not.
void find_sum_factors(Mod& mod, bool divides);

} // namespace flexc::passes
