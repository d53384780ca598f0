// The part of mod.cuh that tells Hopper's backward what the derivatives ask of its order of things.
#pragma once

#include <string>
#include <vector>

#include "cuda/config.h"
#include "passes/gradient_sum.h"
#include "passes/mod.h"

namespace flexc::cuda {

passes::TileSums tile_sums(const KernelConfig& config);

// Whether its sum is found in a tile of dS, not element by element.
bool is_of_d_scores(const passes::Mod& mod, const KernelConfig& config,
                    const passes::ReadGradient& gradient);

// gradients: that the kernel adds. roots: all that it computes.
std::string emit_derivative_constants(const passes::Mod& mod, const KernelConfig& config,
                                      const std::vector<passes::ReadGradient>& gradients,
                                      const std::vector<ir::NodeId>& roots);

} // namespace flexc::cuda
