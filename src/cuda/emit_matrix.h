// The part of mod.cuh about a matrix of biases whose tiles are copied to shared memory, and about
// the gradients that are added a tile at a time.
#pragma once

#include <string>
#include <vector>

#include "cuda/config.h"
#include "cuda/expressions.h"

namespace flexc::cuda {

// Where the element that a read names lies, and the step to the next key's. kNoNode: nowhere.
std::string emit_bias_functions(const Layout& layout, ir::NodeId read);

// For Hopper's backward: the read whose tiles are copied; kNoNode for none.
ir::NodeId copied_bias(const passes::Mod& mod, const KernelConfig& config);
std::string emit_matrix_constants(const passes::Mod& mod, const KernelConfig& config,
                                  const std::vector<passes::ReadGradient>& gradients);

} // namespace flexc::cuda
