// What keeps gradients of buffers the same on every run, where blocks of keys end in any order.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

// Whether elements of one head never meet at an address of this buffer's gradient: one read alone
// adds to it, and its indices tell both positions apart. Blocks of different heads do meet there.
bool is_dense_gradient(const Mod& mod, std::uint32_t buffer);

// Whether elements meet at an address of a shifted gradient, of whatever heads, only where a clamp
// ends: its read is the only one of its buffer, and has b, h and which line it is for indices.
bool are_apart(const Mod& mod, const ReadGradient& gradient);

// Whether its lines are also those of all heads and queries, or keys, and no clamp ends them: each
// other index is b, h or q_idx, or kv_idx, itself.
bool has_whole_lines(const Mod& mod, const ReadGradient& gradient);

// Buffers with a gradient that is no dense one: their terms are summed exactly, in any order.
std::vector<std::uint32_t> exact_gradients(const Mod& mod);

bool has_dense_gradient(const Mod& mod);

// Heads of keys that may add to dense gradients at the same time: no two of them meet.
enum class HeadsAtOnce : std::uint8_t { all, of_batch, one };
HeadsAtOnce heads_at_once(const Mod& mod);

} // namespace flexc::passes
