// Captured buffers and their gradients against what the program declares. Messages name the tensor
// and what was expected.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "flexc/kernel.h"
#include "flexc/result.h"
#include "ir/program.h"

namespace flexc::runtime {

inline constexpr std::int64_t kUnbound = -1;

inline Error invalid(std::string message) {
    return {ErrorCode::invalid_option, std::move(message)};
}
std::string shape_text(std::span<const std::int64_t> shape);
std::span<const std::int64_t> shape_of(const TensorView& tensor);

inline std::size_t bytes_of(const TensorView& tensor) {
    return static_cast<std::size_t>(tensor.elements()) * size_of(tensor.dtype);
}

// Gives named sizes the extents of the buffers that are passed: `sizes` has one value per size of
// the program, kUnbound where it is not known yet.
Result<void> bind_sizes(const ir::Program& program, std::span<const NamedTensor> tensors,
                        std::span<std::int64_t> sizes);

// Of a buffer's gradient.
DType gradient_dtype(const ir::Buffer& buffer, GradientType type);

// Fills one view per buffer of the program.
Result<void> find_buffers(const ir::Program& program, std::span<const std::int64_t> sizes,
                          std::span<const NamedTensor> tensors, std::span<TensorView> views);
// The same for gradients of its grad buffers.
Result<void> find_gradients(const ir::Program& program, std::span<const std::int64_t> sizes,
                            std::span<const NamedTensor> tensors, GradientType type,
                            std::span<TensorView> views);

} // namespace flexc::runtime
