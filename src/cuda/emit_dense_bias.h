// The part of mod.cuh about a dense bias whose tiles are copied to shared memory, and about
// the gradients that are added a tile at a time.
#pragma once

#include <string>
#include <vector>

#include "cuda/expressions.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// For a warp-specialized forward: of this read; kNoNode for none.
std::string emit_dense_bias(const Layout& layout, ir::NodeId read);

// For a warp-specialized backward: the read whose tiles are copied; kNoNode for none.
ir::NodeId copied_bias(const passes::Mod& mod, const plan::KernelConfig& config);
std::string emit_dense_bias(const Layout& layout, const plan::KernelConfig& config,
                            const std::vector<passes::ReadGradient>& gradients);

} // namespace flexc::cuda
