// Gradients of reads as multiples of the score's: where the factor is a function of distances, sums
// over diagonals are all that the gradient needs of the elements.
#pragma once

#include <optional>

#include "passes/mod.h"

namespace flexc::passes {

// The gradient of what was read is the sum over elements of factor times d loss / d score, or times
// d loss / d modified score. The factor does not use the score.
struct GradientFactor {
    ir::NodeId factor = ir::kNoNode;
    bool of_modified_score = false; // both are the same where d score_mod / d score is 1
    analysis::Differences differences;
};

// Nothing where the two derivatives have no such ratio that is found. Adds nodes to the mod's
// graph; facts of these are found by find_facts().
std::optional<GradientFactor> gradient_factor(Mod& mod, const ReadGradient& gradient);

} // namespace flexc::passes
