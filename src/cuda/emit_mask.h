// The part of mod.cuh by which warps of warp-specialized kernels find what a mask shows of a tile.
#pragma once

#include <string>

#include "cuda/expressions.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// What the mask says beside its band, in parts of which each uses other values of rows: a warp
// looks once for all of its rows, or columns, that are alike to a part. Nothing for other kernels.
struct MaskPartsText {
    int count = 0;
    std::string text;
};
MaskPartsText emit_mask_parts(const Layout& layout, const plan::KernelConfig& config);

} // namespace flexc::cuda
