// Copies rows of the caller's tensors, of any type and strides, to and from f32 matrices.
#pragma once

#include <bit>
#include <cstdint>

#include "common/arguments.h"
#include "cpu/tile.h"
#include "flexc/types.h"

namespace flexc::cpu {

// Of an element of queries, keys or values.
constexpr std::int64_t bytes_of(DType dtype) {
    return dtype == DType::f32 ? 4 : dtype == DType::f16 || dtype == DType::bf16 ? 2 : 1;
}

// Rows [first, first + count) of one (b, h).
struct Rows {
    std::int64_t b, h, first, count;
};

// The magnitude of all values that were loaded; moderate: below kModerateInput.
struct Magnitude {
    bool is_finite = true, is_moderate = true;

    Magnitude& operator&=(const Magnitude& more) {
        is_finite = is_finite && more.is_finite;
        is_moderate = is_moderate && more.is_moderate;
        return *this;
    }
};
inline constexpr std::uint32_t kExponent = 0x7f800000; // its bits in f32
// The magnitude of values whose exponent bits are at most these.
constexpr Magnitude magnitude_of(std::uint32_t exponent) {
    return {exponent != kExponent, exponent < std::bit_cast<std::uint32_t>(kModerateInput)};
}
// Both fill the padding with 0. scale: of 8-bit types.
Magnitude load_rows(const TensorArgument& tensor, DType dtype, const Rows& rows, int dim,
                    float* out, std::int64_t padded_rows,
                    float scale = 1); // out[padded_rows][dim]
Magnitude load_transposed(const TensorArgument& tensor, DType dtype, const Rows& rows, int dim,
                          float* out, std::int64_t stride, std::int64_t padded_rows,
                          float scale = 1); // out[dim][stride]

// Stores as `flags` (OutputFlag) say; dtype applies unless they ask for f32.
void store_rows(const TensorArgument& tensor, DType dtype, unsigned flags, const Rows& rows,
                int dim, const float* in, std::int64_t stride);

} // namespace flexc::cpu
