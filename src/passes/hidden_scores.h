// Finds where a score mod gives -inf whatever the score is: additive masks, and branches that are
// -inf.
#pragma once

#include <optional>

#include "passes/mod.h"

namespace flexc::passes {

// Values up to this magnitude count as moderate: neither a product of two nor any sum overflows.
inline constexpr double kModerateScore = 0x1p60;

// Bools that do not use the score. If true, the modified score of the element is -inf.
struct HiddenScores {
    ir::NodeId of_any = ir::kNoNode;      // for every score, NaN and infinities included
    ir::NodeId of_moderate = ir::kNoNode; // for scores up to kModerateScore; wherever of_any is
};
// Adds the nodes to the program of `mod` and updates the facts about nodes. Nothing if no constant
// of the score mod, and no array that it reads by position, can hide an element.
std::optional<HiddenScores> find_hidden_scores(Mod& mod);

} // namespace flexc::passes
