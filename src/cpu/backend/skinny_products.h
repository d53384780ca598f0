// Products of a few rows with keys or values as they lie in the caller's memory: a decode step
// reads each key once, so that packing it first would take several times as long as the product.
#pragma once

#include <cstdint>

#include "flexc/types.h"

namespace flexc::cpu {

// Most rows; with more, packed products are faster.
inline constexpr int kSkinnyRows = 32;

// Rows of one head in memory, in elements of `data`; the elements of a row are contiguous. next:
// the row that is read after these, or any. scale: of 8-bit types.
struct MemoryRows {
    const void* data;
    std::int64_t first, stride, count, next;
    float scale = 1;
};

// Whether this processor has code for them.
bool has_skinny_products(int dim);

// scores[row][j] = sum over d of left[row][d] * keys[j][d]. rows: a power of two, up to
// kSkinnyRows. left[rows][dim], scores[rows][stride].
void multiply_by_keys(DType dtype, int rows, int dim, const float* left, const MemoryRows& keys,
                      float* scores, std::int64_t stride);

// out[row][d] += sum over j of weights[row][j] * values[j][d]. weights[rows][stride],
// out[rows][dim]. A weight of zero and a value that is not finite give NaN.
void add_weighted_values(DType dtype, int rows, int dim, const float* weights, std::int64_t stride,
                         const MemoryRows& values, float* out);

// The same by vectors of one instruction set.
namespace avx2 {
decltype(cpu::multiply_by_keys) multiply_by_keys;
decltype(cpu::add_weighted_values) add_weighted_values;
} // namespace avx2
namespace avx512 {
decltype(cpu::multiply_by_keys) multiply_by_keys;
decltype(cpu::add_weighted_values) add_weighted_values;
} // namespace avx512

} // namespace flexc::cpu
