// Calls whose sizes and params keep indices inside of their buffers, where a program's text does
// not say that they are: bias[h, q_idx + KV_LEN - Q_LEN, kv_idx], bias[h // (H // N), q_idx,
// kv_idx]. What is copied, or added to, line by line has to be inside, so that such calls have
// kernels of their own. So have calls with few of the kinds by which a table is read, whose number
// they bind: products sum its gradient.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

// Kinds of queries, or of keys, of a table of few, if a call binds their number.
inline constexpr std::int64_t kMostBoundKinds = 16;

// Returns the mod of such calls, from one whose gradients have no sums yet: none if no read of the
// score is affine in q and kv with an index that calls alone can tell to be inside, and no learned
// one is by kinds of which they bind the number.
std::vector<Mod> mods_of_inside_calls(const Mod& mod);
// Whether such a mod, whose gradients have sums, is one of lines, or products sum one of its
// tables.
bool are_few_kinds_summed(const Mod& inside);
// Whether the mod is that of some calls alone.
bool is_of_inside_calls(const Mod& mod);

} // namespace flexc::passes
