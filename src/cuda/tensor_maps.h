// Creates tensor maps, which describe the tensors of a launch to TMA.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "common/arguments.h"
#include "common/tensor_maps.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// A matrix of biases in memory, with rows row_step elements apart.
struct BiasLayout {
    void* data;
    int element_bytes;
    std::uint64_t columns, rows, row_step;
};

// The properties of tensors that a kernel is compiled for. Ragged queries and keys are one batch
// entry with all rows.
struct TensorForm {
    int head_dim, head_dim_v;
    bool is_ragged, keys_are_in_order;
};

// Return the name of a tensor that TMA, or threads that copy, cannot address; empty if there is
// none. Bases and strides must be multiples of 16 bytes, not negative, and rows contiguous.
std::string_view forward_tensor_without_tma(const AttentionArguments& arguments,
                                            const TensorForm& form);
std::string_view backward_tensor_without_tma(const AttentionArguments& arguments,
                                             const TensorForm& form);

// Returns the maps of a forward; nothing if a tensor's alignment or strides, or the driver, rule it
// out. Those of k and v are empty unless it loads_keys by TMA.
std::optional<ForwardTensorMaps> forward_maps(const plan::KernelConfig& config, bool loads_keys,
                                              const AttentionArguments& arguments, DType dtype,
                                              const TensorForm& form);

// Adds the map of biases if the kernel's tiles and the matrix allow it.
void add_bias_tensor_map(const plan::KernelConfig& config, const BiasLayout& biases,
                         ForwardTensorMaps& maps);

// Returns the maps of a backward, likewise.
std::optional<BackwardTensorMaps> backward_maps(const plan::KernelConfig& config,
                                                const AttentionArguments& arguments, DType dtype,
                                                const TensorForm& form);

} // namespace flexc::cuda
