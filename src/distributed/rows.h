// Rows of tensors, as views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "flexc/distributed.h"

namespace flexc::distributed {

// The rows from begin on; the same memory. Of [B, H, S, D] or [B, H, S], or along another dim.
TensorView rows_of(const TensorView& tensor, std::int64_t begin, std::int64_t count,
                   std::size_t dim = 2);

// Where a position is in tensors with the rows of these ranges; -1 where they have others.
std::int64_t row_of(std::span<const RowRange> ranges, std::int64_t position);

std::size_t bytes_of(const TensorView& tensor);

} // namespace flexc::distributed
