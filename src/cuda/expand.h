// What Hopper's forward has computed before it: values of a score mod that use kv alone, or q and
// kv by their difference alone, beside b and h.
#pragma once

#include "cuda/fold.h"

namespace flexc::cuda {

// Fills key_values and distance_values. The other parts have been found.
void find_expanded(const passes::Mod& mod, ScoreParts& parts);
ExpandedValues expanded_values(const FoldedMod& folded);

} // namespace flexc::cuda
