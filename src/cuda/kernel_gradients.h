// Which of a mod's gradients a kernel adds, and what its functions compute of them.
#pragma once

#include <initializer_list>
#include <map>
#include <vector>

#include "passes/gradient_sum.h"
#include "passes/mod.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// Returns the gradients that this kernel adds, without those of reads in the terms of a sum() that
// the next two functions return.
std::vector<passes::ReadGradient> gradients_of(const passes::Mod& mod,
                                               const plan::KernelConfig& config);
// Returns the gradients of reads in terms that a fold kernel adds, from sums over diagonals.
std::vector<passes::ReadGradient> terms_by_distance(const passes::Mod& mod);
// Returns the gradients of reads in terms that this kernel sums over its tiles.
std::vector<passes::ReadGradient> terms_of_kernel(const passes::Mod& mod,
                                                  const plan::KernelConfig& config);

// Returns the gradients of reads in terms, by the counter of their sum.
std::map<ir::NodeId, std::vector<passes::ReadGradient>>
by_counter(const passes::Mod& mod, const std::vector<passes::ReadGradient>& gradients);

// Whether the kernel sums one of the gradients in this way.
bool has_sum(const passes::Mod& mod, const plan::KernelConfig& config,
             const std::vector<passes::ReadGradient>& gradients, passes::GradientSum sum);

// Returns the nodes from which gradients are computed: the named factors of each gradient, where it
// has them, and the indices of its read.
std::vector<ir::NodeId>
gradient_roots(const passes::Mod& mod, const std::vector<passes::ReadGradient>& gradients,
               std::initializer_list<ir::NodeId passes::ReadGradient::*> factors);

} // namespace flexc::cuda
