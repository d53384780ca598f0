// The part of mod.cuh by which kernels with FamilyText::has_mask_parts find which elements of a
// tile a mask shows.
#pragma once

#include <string>

#include "cuda/expressions.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// The mask's conjuncts beside its band, grouped into parts that use the same values of rows and
// columns: a warp evaluates a part once for all of its rows (or columns) with equal values. Empty
// for other kernels.
struct MaskPartsText {
    int count = 0;
    std::string text;
};
MaskPartsText emit_mask_parts(const Layout& layout, const plan::KernelConfig& config);

} // namespace flexc::cuda
