// What the copy engine needs to know of a launch's tensors.
#pragma once

#include <cstdint>
#include <optional>

#include "common/arguments.h"
#include "common/tensor_maps.h"
#include "cuda/config.h"

namespace flexc::cuda {

// A matrix in memory: rows of so many columns, row_step elements apart.
struct MatrixLayout {
    void* data;
    int element_bytes;
    std::uint64_t columns, rows, row_step;
};

// For forward_sm90.cu. Empty where a tensor's alignment or strides, or the driver, rule it out.
std::optional<ForwardMaps> forward_maps(const KernelConfig& config,
                                        const AttentionArguments& arguments, DType dtype,
                                        int head_dim, int head_dim_v);

// Adds that of biases, where the kernel's tiles and the matrix allow it.
void add_bias_map(const KernelConfig& config, const MatrixLayout& biases, ForwardMaps& maps);

// For backward_sm90.cu, likewise.
std::optional<BackwardMaps> backward_maps(const KernelConfig& config,
                                          const AttentionArguments& arguments, DType dtype,
                                          int head_dim, int head_dim_v);

} // namespace flexc::cuda
