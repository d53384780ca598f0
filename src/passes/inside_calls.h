// Calls whose sizes and params keep indices inside of their buffers, where a program's text does
// not say that they are: bias[h, q_idx + KV_LEN - Q_LEN, kv_idx], bias[h // (H // N), q_idx,
// kv_idx]. What is copied, or added to, line by line has to be inside, so that such calls have
// kernels of their own.
#pragma once

#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

// Returns the mod of such calls, from one whose gradients have no sums yet: none if no read of the
// score is affine in q and kv with an index that calls alone can tell to be inside.
std::vector<Mod> mods_of_inside_calls(const Mod& mod);

} // namespace flexc::passes
