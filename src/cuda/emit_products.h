// The products of Hopper's forward kernel, in the part of mod.cuh that it adds.
#pragma once

#include <string>

#include "cuda/config.h"
#include "cuda/emit.h"

namespace flexc::cuda {

std::string emit_products(const KernelConfig& config, const EmitOptions& options);

} // namespace flexc::cuda
