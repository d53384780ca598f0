// The parts of mod.cuh by which kernels find which elements a mask shows:
// templates/policies/mask.cuh.
#pragma once

#include <string>
#include <vector>

#include "cuda/expressions.h"
#include "passes/mod.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// What a kernel knows of the mask.
struct KernelMask {
    bool exists = false;   // else all elements are visible
    bool has_band = false; // it computes from Mod::band which tiles to visit
};
// has_elements: the kernel evaluates elements of the score matrix.
KernelMask kernel_mask(const passes::Mod& mod, const plan::KernelConfig& config, bool has_elements);

// The roots of emit_band(): the ends of the band and their clamps.
std::vector<ir::NodeId> band_roots(const passes::Mod& mod, const KernelMask& mask);
// The functions band() and clamps().
std::string emit_band(const SymbolTable& symbols, const KernelMask& mask);

// The policy Mask; for kernels with FamilyText::has_mask_parts also a MaskPart for each group of
// the mask's conjuncts beside its band that use the same values of rows and columns. A warp
// evaluates a part once for all of its rows (or columns) with equal values.
std::string emit_mask(const SymbolTable& symbols, const plan::KernelConfig& config,
                      const KernelMask& mask);

} // namespace flexc::cuda
