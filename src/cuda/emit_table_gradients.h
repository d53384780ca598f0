// The part of mod.cuh by which templates/common/table_sums.cuh finds the entries of tables.
#pragma once

#include <string>
#include <vector>

#include "cuda/expressions.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// A TableGradient for each of the gradients that is summed as a table's.
std::string emit_table_gradients(const SymbolTable& symbols, const plan::KernelConfig& config,
                                 const std::vector<passes::ReadGradient>& gradients);

} // namespace flexc::cuda
