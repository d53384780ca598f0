// Decides how gradients of buffers are kept bitwise reproducible, as blocks of keys end in any
// order.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

// Whether no two elements of a head add to the same address of this buffer's gradient: a single
// read adds to it, and its indices identify both positions. Elements of different heads may.
bool is_dense_gradient(const Mod& mod, std::uint32_t buffer);

// Whether elements of any heads add to the same address of a shifted gradient only beyond a clamp:
// its read is the only one of its buffer, and its other indices are b, h and the line.
bool are_apart(const Mod& mod, const ReadGradient& gradient);

// Whether there is one line for each head and each query (or key), and no clamp: each other index
// is b, h, and q_idx (or kv_idx) itself.
bool has_whole_lines(const Mod& mod, const ReadGradient& gradient);

// Buffers whose gradient is not dense. Its terms are summed exactly, in any order.
std::vector<std::uint32_t> exact_gradients(const Mod& mod);

bool has_dense_gradient(const Mod& mod);

// Which KV heads may add to dense gradients at the same time without meeting at an address.
enum class HeadsAtOnce : std::uint8_t { all, of_batch, one };
HeadsAtOnce heads_at_once(const Mod& mod);

} // namespace flexc::passes
