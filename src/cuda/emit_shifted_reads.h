// The part of mod.cuh about reads whose addresses are affine in q and kv, of which tiles are
// copied.
#pragma once

#include <string>
#include <vector>

#include "cuda/expressions.h"
#include "passes/gradient_sum.h"
#include "passes/shifted_read.h"

namespace flexc::cuda {

// Roots of the functions below: indices of the reads and their clamps.
std::vector<ir::NodeId> shifted_roots(const std::vector<passes::ShiftedRead>& reads);

// Policy of the shifted reads whose tiles the forward copies. addend: the expression that uses
// them.
std::string emit_shifted_reads(const SymbolTable& symbols,
                               const std::vector<passes::ShiftedRead>& reads, ir::NodeId addend);
// Policy of the shifted reads whose gradients a backward adds by tiles.
std::string emit_shifted_gradients(const SymbolTable& symbols,
                                   const std::vector<passes::ReadGradient>& gradients,
                                   passes::TileSums tile);

} // namespace flexc::cuda
