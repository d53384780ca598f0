// The constants of mod.cuh that only a warp-specialized forward has: its sizes, the form of its
// logits, and its schedule.
#pragma once

#include <string>

#include "passes/decompose.h"
#include "plan/kernel.h"

namespace flexc::cuda {

std::string emit_forward_constants(const plan::KernelConfig& config, const passes::Mod& mod,
                                   const passes::ScoreParts& parts);

} // namespace flexc::cuda
