// Tensor maps: what TMA needs to know of a launch's tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "common/arguments.h"
#include "common/tensor_maps.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// A matrix in memory: rows of so many columns, row_step elements apart.
struct BiasLayout {
    void* data;
    int element_bytes;
    std::uint64_t columns, rows, row_step;
};

// What a kernel knows of its tensors. Ragged queries and keys are one batch entry with all rows.
struct TensorForm {
    int head_dim, head_dim_v;
    bool is_ragged, keys_are_in_order;
};

// The tensor of a forward, or of a backward, that TMA, and threads that copy, cannot walk: bases
// and strides of 16 aligned bytes, none negative, elements of a row side by side. Empty: they can
// walk all.
std::string_view forward_tensor_without_tma(const AttentionArguments& arguments,
                                            const TensorForm& form);
std::string_view backward_tensor_without_tma(const AttentionArguments& arguments,
                                             const TensorForm& form);

// For a forward. Empty where a tensor's alignment or strides, or the driver, rule it out.
std::optional<ForwardTensorMaps> forward_maps(const plan::KernelConfig& config,
                                              const AttentionArguments& arguments, DType dtype,
                                              const TensorForm& form);

// Adds that of biases, where the kernel's tiles and the matrix allow it.
void add_bias_tensor_map(const plan::KernelConfig& config, const BiasLayout& biases,
                         ForwardTensorMaps& maps);

// For a backward, likewise.
std::optional<BackwardTensorMaps> backward_maps(const plan::KernelConfig& config,
                                                const AttentionArguments& arguments, DType dtype,
                                                const TensorForm& form);

} // namespace flexc::cuda
