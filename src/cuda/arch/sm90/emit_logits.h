// The part of mod.cuh that a warp-specialized forward adds.
#pragma once

#include <string>

#include "cuda/expressions.h"
#include "passes/decompose.h"
#include "plan/kernel.h"

namespace flexc::cuda {

std::string emit_logit_constants(const plan::KernelConfig& config, const passes::Mod& mod,
                                 const passes::ScoreParts& parts);
// The functions that compute logits; they come after struct At in mod.cuh.
std::string emit_logit_functions(const Layout& layout, const plan::KernelConfig& config,
                                 const passes::ScoreParts& parts, int mask_instructions);

} // namespace flexc::cuda
