// The part of mod.cuh about reads whose addresses are affine in q and kv, of which tiles are
// copied.
#pragma once

#include <string>
#include <vector>

#include "cuda/expressions.h"
#include "passes/gradient_sum.h"
#include "passes/shifted_read.h"

namespace flexc::cuda {

// What the functions below are computed from.
std::vector<ir::NodeId> shifted_roots(const std::vector<passes::ShiftedRead>& reads);

// Of those that the forward copies. addend: what elements make of them.
std::string emit_shifted_reads(const Layout& layout, const std::vector<passes::ShiftedRead>& reads,
                               ir::NodeId addend);
// Of those whose gradients a backward adds by tiles.
std::string emit_shifted_gradients(const Layout& layout,
                                   const std::vector<passes::ReadGradient>& gradients,
                                   passes::TileSums tile);

} // namespace flexc::cuda
