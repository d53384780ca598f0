// Views of rows of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "flexc/distributed.h"

namespace flexc::distributed {

// A view of the rows from `begin` on, in [B, H, S, D] or [B, H, S], or along another dim.
TensorView rows_of(const TensorView& tensor, std::int64_t begin, std::int64_t count,
                   std::size_t dim = 2);

// Row of a position in tensors that hold these ranges; -1 if they do not hold it.
std::int64_t row_of(std::span<const RowRange> ranges, std::int64_t position);

std::size_t bytes_of(const TensorView& tensor);

} // namespace flexc::distributed
