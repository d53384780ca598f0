// Gradients of reads from tables that are small, or of which a tile of elements meets a small part:
// they are summed in shared memory before they are added to memory.
#pragma once

#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

// Whether each element adds dS, or the same multiple of it, to a place that several elements of a
// tile meet, and each index is a number of the query plus a number of the key.
bool is_table_gradient(const Mod& mod, const ReadGradient& gradient);
// What its elements add is dS times this number: -0.5 for `score - t[...] * 0.5`.
double table_factor(const Mod& mod, const ReadGradient& gradient);
// The dims of a read whose index changes inside of a head.
std::vector<std::uint32_t> varying_dims(const Mod& mod, ir::NodeId read);
} // namespace flexc::passes
