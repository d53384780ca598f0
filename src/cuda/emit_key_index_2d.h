// The part of mod.cuh about a 2-D key index in a warp-specialized backward: which reads it keeps in
// shared memory, and which gradients it sums by the index.
#pragma once

#include <string>
#include <vector>

#include "cuda/expressions.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// Returns the reads that depend on the row of the index, then those that depend on its column.
std::vector<ir::NodeId> staged_reads(const passes::Mod& mod, const plan::KernelConfig& config);

std::string emit_key_index_2d(const SymbolTable& symbols, const plan::KernelConfig& config,
                              const std::vector<passes::ReadGradient>& gradients);

} // namespace flexc::cuda
