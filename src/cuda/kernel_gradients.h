// Which of a mod's gradients a kernel adds, and what its functions compute of them.
#pragma once

#include <initializer_list>
#include <map>
#include <vector>

#include "passes/gradient_sum.h"
#include "passes/mod.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// Returns those that this kernel adds, except those of sums' terms of the next two functions.
std::vector<passes::ReadGradient> gradients_of(const passes::Mod& mod,
                                               const plan::KernelConfig& config);
// Those of sums' terms that a fold kernel adds, from sums over diagonals.
std::vector<passes::ReadGradient> terms_by_distance(const passes::Mod& mod);
// Those of sums' terms that this kernel sums over its tiles.
std::vector<passes::ReadGradient> terms_of_kernel(const passes::Mod& mod,
                                                  const plan::KernelConfig& config);

// Returns those of sums' terms, by the counter of their sum.
std::map<ir::NodeId, std::vector<passes::ReadGradient>>
by_counter(const passes::Mod& mod, const std::vector<passes::ReadGradient>& gradients);

// Whether the kernel sums one of these in this way.
bool has_sum(const passes::Mod& mod, const plan::KernelConfig& config,
             const std::vector<passes::ReadGradient>& gradients, passes::GradientSum sum);

// Returns these factors of each gradient that has them, and the indices of its read.
std::vector<ir::NodeId>
gradient_roots(const passes::Mod& mod, const std::vector<passes::ReadGradient>& gradients,
               std::initializer_list<ir::NodeId passes::ReadGradient::*> factors);

} // namespace flexc::cuda
