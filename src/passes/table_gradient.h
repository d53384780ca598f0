// Gradients of reads from tables that are small, or of which a tile of elements meets a small part:
// they are summed in shared memory before they are added to memory.
#pragma once

#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

// Fills ReadGradient::is_of_table: whether each element adds dS, or the same multiple of it, to a
// place that several elements of a tile meet, and each index is a number of the query plus one of
// the key. From the mod's facts.
void find_table_gradients(Mod& mod);
// What its elements add is dS times this number: -0.5 for `score - t[...] * 0.5`.
double table_factor(const Mod& mod, const ReadGradient& gradient);
// The dims of a read whose index changes inside of a head.
std::vector<std::uint32_t> varying_dims(const Mod& mod, ir::NodeId read);

} // namespace flexc::passes
