// The part of mod.cuh about gradients of what the terms of a sum() read.
#pragma once

#include <string>
#include <vector>

#include "cuda/expressions.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// Emits addresses and factors of the gradients that a fold kernel adds. terms: terms_by_distance().
std::string emit_term_gradients(const SymbolTable& symbols,
                                const std::vector<passes::ReadGradient>& terms);

// Returns the values of an element that enter terms, of these gradients and of `sums`: an element
// computes them before the loops over terms, which are given them.
std::vector<ir::NodeId> carried_by_terms(const SymbolTable& symbols,
                                         const std::vector<passes::ReadGradient>& gradients,
                                         const std::vector<ir::NodeId>& sums);
// Emits what a kernel needs of the gradients that it sums over its tiles. terms: terms_of_kernel();
// given: carried_by_terms().
std::string emit_term_sums(const SymbolTable& symbols, const plan::KernelConfig& config,
                           const std::vector<passes::ReadGradient>& terms,
                           const std::vector<ir::NodeId>& given);

} // namespace flexc::cuda
