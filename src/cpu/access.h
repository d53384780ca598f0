// How the addresses of reads of captured buffers change with kv, and how their gradients are added.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "passes/mod.h"

namespace flexc::cpu {

// Returns the only index of a read that changes with kv, if it is affine; else -1.
int moving_dim(const passes::Mod& mod, const ir::Node& read);

// How the contributions of one row of a tile reach the gradient buffer.
enum class Scatter : std::uint8_t {
    row,     // all to one element: summed in a register, one addition a row
    vector,  // each to its own element, in order of kv: added in the vector loop
    element, // anything else: one addition an element
};

struct GradientPlan {
    passes::ReadGradient gradient;
    Scatter scatter = Scatter::element;
};
std::vector<GradientPlan> plan_gradients(const passes::Mod& mod);

// Separation bits of a buffer: variables that are, for every read with a gradient, an index alone.
std::uint32_t separation(const passes::Mod& mod, std::uint32_t buffer);

} // namespace flexc::cpu
