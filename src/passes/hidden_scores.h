// Where a score mod gives -inf whatever the score is: additive masks, and branches that are -inf.
#pragma once

#include <optional>

#include "passes/mod.h"

namespace flexc::passes {

// Absolute values up to this count as moderate: neither the product of two nor any sum overflows.
inline constexpr double kModerateScore = 0x1p60;

// Bools without score. True: no other arithmetic on the element can give anything but -inf.
struct HiddenScores {
    ir::NodeId of_any = ir::kNoNode;      // for every score, NaN and infinities included
    ir::NodeId of_moderate = ir::kNoNode; // for scores up to kModerateScore; wherever of_any is
};
// Adds the nodes to the program of `mod` and brings the facts about nodes up to date. Nothing where
// no constant of the score mod and no array that it reads at positions themselves could hide.
std::optional<HiddenScores> find_hidden_scores(Mod& mod);

} // namespace flexc::passes
