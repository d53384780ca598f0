// The wgmma instructions of QK and PV, in the part of mod.cuh that a warp-specialized forward adds.
#pragma once

#include <string>

#include "cuda/emit.h"
#include "plan/kernel.h"

namespace flexc::cuda {

std::string emit_mma(const plan::KernelConfig& config, const EmitOptions& options);

} // namespace flexc::cuda
