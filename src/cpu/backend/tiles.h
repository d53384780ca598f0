// Small matrix products in single precision, on machine code that libxsmm makes for each shape.
#pragma once

#include <cstdint>
#include <string>

namespace flexc::cpu {

// All matrices are row-major: out[rows][columns] (+)= left[rows][inner] right[inner][columns].
struct Product {
    int rows, columns, inner;
    int left_stride, right_stride, out_stride;
    bool left_transposed = false; // left is stored as [inner][rows]
    bool accumulate = false;
};

void multiply(const Product& product, const float* left, const float* right, float* out);

// The same, but a zero in `left` takes nothing from `right`, be it inf or NaN: for tiles in which
// hidden elements meet values that are not finite.
void multiply_skipping_zeros(const Product& product, const float* left, const float* right,
                             float* out);

// Rows of queries of one step: few enough for their scores to stay in the first-level cache.
inline constexpr int kStripRows = 32;

// Shapes are rounded up to a few, so that few kernels are made: columns and inner dimensions along
// kv to kColumnUnit, rows to a power of two.
inline constexpr int kColumnUnit = 16;
constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) {
    return (value + unit - 1) / unit * unit;
}
constexpr std::int64_t power_of_two(std::int64_t value) {
    std::int64_t power = 1;
    while (power < value)
        power *= 2;
    return power;
}

std::string tiles_description();

} // namespace flexc::cpu
