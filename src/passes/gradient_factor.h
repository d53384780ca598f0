// Gradients of reads as multiples of the score's: where the factor is a function of distances, sums
// over diagonals are all that the gradient needs of the elements.
#pragma once

#include "passes/mod.h"

namespace flexc::passes {

// What times d loss / d score, summed over elements, is the gradient of what was read; it does not
// use the score. kNoNode where no such factor is found. Adds nodes to the mod's graph; facts of
// these are found by find_facts().
ir::NodeId gradient_factor(Mod& mod, const ReadGradient& gradient);

} // namespace flexc::passes
