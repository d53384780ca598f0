// The part of mod.cuh about what a warp-specialized backward has by distance: values of q - kv, and
// gradients that are sums over diagonals of dS or over parts of them.
#pragma once

#include <string>
#include <vector>

#include "cuda/expressions.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// The values, each evaluated at an element.
std::string emit_distance_values(const SymbolTable& symbols, const plan::KernelConfig& config);
// The factors of sums over diagonals, likewise.
std::string emit_distance_factors(const SymbolTable& symbols,
                                  const std::vector<passes::ReadGradient>& gradients,
                                  passes::TileSums tile);
// Gradients whose indices are differences of digits: sums over parts of diagonals.
std::string emit_grid_gradients(const SymbolTable& symbols, const plan::KernelConfig& config);

} // namespace flexc::cuda
