// Checks captured buffers and their gradients against what the program declares. Messages name the
// tensor and what was expected.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "flexc/kernel.h"
#include "flexc/result.h"
#include "ir/program.h"
#include "support/amounts.h"

namespace flexc::runtime {

inline constexpr std::int64_t kUnbound = -1;

inline Error invalid(std::string message) {
    return {ErrorCode::invalid_option, std::move(message)};
}
// "[H, N = 3]": sizes that are kUnbound have no value.
std::string dims_text(const ir::Program& program, const ir::Buffer& buffer,
                      std::span<const std::int64_t> sizes);
std::string shape_text(std::span<const std::int64_t> shape);
std::span<const std::int64_t> shape_of(const TensorView& tensor);

inline std::size_t bytes_of(const TensorView& tensor) {
    return support::times(static_cast<std::size_t>(tensor.elements()), size_of(tensor.dtype));
}

// Checks what every other check of a view relies on: its rank, and that no product of its extents
// and strides overflows.
Result<void> check_view(const TensorView& tensor, std::string_view label);

bool is_contiguous(const TensorView& tensor);
Result<void> check_writable(const TensorView& tensor, std::string_view label);

// Sets named sizes to the extents of the buffers that are passed. `sizes` has one value per size of
// the program, kUnbound if it is not known yet.
Result<void> bind_sizes(const ir::Program& program, std::span<const NamedTensor> tensors,
                        std::span<std::int64_t> sizes);

// The type in which a buffer's gradient is returned.
DType gradient_dtype(const ir::Buffer& buffer, GradientType type);

// Fills one view per buffer of the program.
Result<void> find_buffers(const ir::Program& program, std::span<const std::int64_t> sizes,
                          std::span<const NamedTensor> tensors, std::span<TensorView> views);
// Fills one view per buffer with its gradient; empty for buffers that have none.
Result<void> find_gradients(const ir::Program& program, std::span<const std::int64_t> sizes,
                            std::span<const NamedTensor> tensors, GradientType type,
                            std::span<TensorView> views);

} // namespace flexc::runtime
