// The part of mod.cuh by which warps of Hopper's kernels find what a mask shows of a tile.
#pragma once

#include <string>

#include "cuda/config.h"
#include "cuda/expressions.h"

namespace flexc::cuda {

// What the mask says beside its band, in parts of which each uses other values of rows: a warp
// looks once for all of its rows, or columns, that are alike to a part. Nothing for other kernels.
std::string emit_mask_parts(const Layout& layout, const KernelConfig& config);

} // namespace flexc::cuda
