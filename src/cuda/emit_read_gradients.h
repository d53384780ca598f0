// The part of mod.cuh that tells a warp-specialized backward how the gradient of each captured read
// is summed.
#pragma once

#include <string>
#include <vector>

#include "cuda/expressions.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// How the kernel sums each gradient, and where it adds the sum. come_from_elements: some are added
// element by element rather than from tiles of dS.
std::string emit_read_gradients(const SymbolTable& symbols, const plan::KernelConfig& config,
                                const std::vector<passes::ReadGradient>& gradients,
                                bool come_from_elements);

// For kernels that pass over rows: the partial of each read whose gradient is added once a row, as
// a function of the score.
std::string emit_row_gradients(const SymbolTable& symbols,
                               const std::vector<passes::ReadGradient>& gradients);

} // namespace flexc::cuda
