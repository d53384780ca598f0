// Products of a few rows with keys or values as they lie in the caller's memory: a decode step
// reads each key once, so that packing it first would take several times as long as the product.
#pragma once

#include <cstdint>

#include "flexc/types.h"

namespace flexc::cpu {

// Most rows; with more, packed products are faster.
inline constexpr int kSkinnyRows = 32;

// Rows of one head in memory; the elements of a row are contiguous. Strides are in elements.
struct MemoryRows {
    const void* data; // the first row
    std::int64_t stride, count;
    std::int64_t ahead; // how many rows ahead are prefetched
    const void* next;   // the row that is read max(count, ahead) rows after the first, or any
    float scale = 1;    // of 8-bit types
};

// How this processor best reads rows.
struct ReadingOrder {
    std::int64_t rows_ahead; // to prefetch
    // Keys of one head before those of the next one, where these lie between them; 0: any number.
    std::int64_t keys_at_once;
};
ReadingOrder reading_order(int dim, std::int64_t row_bytes);

// Whether this processor has code for them.
bool has_skinny_products(int dim);

// scores[row][j] = sum over d of left[row][d] * keys[j][d]. rows: a power of two, up to
// kSkinnyRows. left[rows][dim], scores[rows][stride].
void multiply_by_keys(DType dtype, int rows, int dim, const float* left, const MemoryRows& keys,
                      float* scores, std::int64_t stride);

// The same for bf16 numbers: whether there is code, and the product.
bool has_bf16_products(int dim);
void multiply_bf16_by_keys(int rows, int dim, const std::uint16_t* left, const MemoryRows& keys,
                           float* scores, std::int64_t stride);

// out[row][d] += sum over j of weights[row][j] * values[j][d]. weights[rows][stride],
// out[rows][dim]. A weight of zero and a value that is not finite give NaN.
void add_weighted_values(DType dtype, int rows, int dim, const float* weights, std::int64_t stride,
                         const MemoryRows& values, float* out);

// The same for bf16 numbers, and two rows or more: whether there is code, how it best reads, and
// the product. round_weights() rounds those of `keys` keys, a multiple of 16:
// rounded[rows][stride].
bool has_bf16_weights(int rows, int dim);
ReadingOrder bf16_reading_order(int dim);
void round_weights(int rows, std::int64_t keys, const float* weights, std::int64_t stride,
                   std::uint16_t* rounded);
void add_bf16_weighted_values(int rows, int dim, const std::uint16_t* weights, std::int64_t stride,
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
namespace avx512vl {
decltype(cpu::multiply_by_keys) multiply_by_keys;
decltype(cpu::multiply_bf16_by_keys) multiply_bf16_by_keys;
decltype(cpu::add_weighted_values) add_weighted_values;
decltype(cpu::round_weights) round_weights;
decltype(cpu::add_bf16_weighted_values) add_bf16_weighted_values;
} // namespace avx512vl

} // namespace flexc::cpu
