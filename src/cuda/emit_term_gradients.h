// The part of mod.cuh about gradients of what the terms of sums read.
#pragma once

#include <string>
#include <vector>

#include "cuda/expressions.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// Addresses and factors of those that a fold kernel adds: terms_by_distance().
std::string emit_term_gradients(const SymbolTable& symbols,
                                const std::vector<passes::ReadGradient>& terms);

// Returns what enters the terms of these gradients and of sums, which elements carry (`given`).
std::vector<ir::NodeId> carried_by_terms(const SymbolTable& symbols,
                                         const std::vector<passes::ReadGradient>& gradients,
                                         const std::vector<ir::NodeId>& sums);
// What a kernel asks of those that it sums over its tiles: terms_of_kernel().
std::string emit_term_sums(const SymbolTable& symbols, const plan::KernelConfig& config,
                           const std::vector<passes::ReadGradient>& terms,
                           const std::vector<ir::NodeId>& given);

} // namespace flexc::cuda
