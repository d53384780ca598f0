// What the copy engine needs to know of a launch's tensors.
#pragma once

#include <optional>

#include "common/arguments.h"
#include "common/tensor_maps.h"
#include "cuda/config.h"

namespace flexc::cuda {

// For forward_sm90.cu. Empty where a tensor's alignment or strides, or the driver, rule it out.
std::optional<ForwardMaps> forward_maps(const KernelConfig& config,
                                        const AttentionArguments& arguments, DType dtype,
                                        int head_dim, int head_dim_v);

// For backward_sm90.cu, likewise.
std::optional<BackwardMaps> backward_maps(const KernelConfig& config,
                                          const AttentionArguments& arguments, DType dtype,
                                          int head_dim, int head_dim_v);

} // namespace flexc::cuda
