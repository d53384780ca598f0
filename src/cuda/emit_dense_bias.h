// The part of mod.cuh about a bias whose tiles are copied to shared memory, and about the gradients
// of dense biases, which are added a tile at a time.
#pragma once

#include <string>
#include <vector>

#include "cuda/expressions.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// Policy of a warp-specialized forward that copies tiles of the dense bias `read`; kNoNode: none.
// band: of the elements that use it.
std::string emit_dense_bias(const SymbolTable& symbols, ir::NodeId read,
                            const analysis::Band& band);

// Returns the read whose tiles a warp-specialized backward copies; kNoNode: none. It is a dense
// bias, or has_shifted_bias(). emit_dense_bias() writes the policy of that kernel, with the
// gradients of dense biases.
ir::NodeId copied_bias(const passes::Mod& mod, const plan::KernelConfig& config);
bool has_shifted_bias(const passes::Mod& mod, const plan::KernelConfig& config);
std::string emit_dense_bias(const SymbolTable& symbols, const plan::KernelConfig& config,
                            const std::vector<passes::ReadGradient>& gradients);

} // namespace flexc::cuda
