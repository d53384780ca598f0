// The functions of mod.cuh by which a warp-specialized forward computes logits, and the policies of
// what they read.
#pragma once

#include <string>

#include "cuda/expressions.h"
#include "passes/decompose.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// They come after struct At.
std::string emit_logit_functions(const SymbolTable& symbols, const plan::KernelConfig& config,
                                 const passes::ScoreParts& parts, int mask_instructions);

} // namespace flexc::cuda
