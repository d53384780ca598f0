// Rows of the caller's tensors, of any type and strides, to and from f32 matrices.
#pragma once

#include <cstdint>

#include "common/arguments.h"
#include "flexc/types.h"

namespace flexc::cpu {

// Rows [first, first + count) of one (b, h).
struct Rows {
    std::int64_t b, h, first, count;
};

// Both give whether every value is finite; they fill what is missing up to the padded size with 0.
bool load_rows(const TensorArgument& tensor, DType dtype, const Rows& rows, int dim, float* out,
               std::int64_t padded_rows); // out[padded_rows][dim]
bool load_transposed(const TensorArgument& tensor, DType dtype, const Rows& rows, int dim,
                     float* out, std::int64_t stride, std::int64_t padded_rows); // out[dim][stride]

// As `flags` (OutputFlag) say; dtype counts where they do not ask for f32.
void store_rows(const TensorArgument& tensor, DType dtype, unsigned flags, const Rows& rows,
                int dim, const float* in, std::int64_t stride);

} // namespace flexc::cpu
