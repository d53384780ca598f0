// Emits the part of mod.cuh that tells a backward how to compute derivatives, and what they use.
#pragma once

#include <string>
#include <vector>

#include "passes/mod.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// Whether the gradient is summed from a tile of dS, not element by element.
bool is_of_d_scores(const passes::Mod& mod, const plan::KernelConfig& config,
                    const passes::ReadGradient& gradient);

// gradients: those that the kernel adds. roots: all nodes that it computes.
std::string emit_score_derivative(const passes::Mod& mod, const plan::KernelConfig& config,
                                  const std::vector<passes::ReadGradient>& gradients,
                                  const std::vector<ir::NodeId>& roots);

} // namespace flexc::cuda
