// Products of tiles of many queries as products of bf16 numbers. Numbers are sums of bf16 parts:
// one for bf16 and its weights, two for f16, which they equal, and for its weights, of which they
// keep 16 bits. Sums are in f32.
#pragma once

#include <cstdint>

#include "cpu/backend/row_list.h"
#include "cpu/backend/tensors.h"
#include "cpu/backend_table.h"

namespace flexc::cpu::parts {

// What multiplies pairs of bf16 numbers: nothing, an instruction of vectors, or AMX.
enum class Unit : std::uint8_t { none, dot_products, matrix_unit };

// Numbers of rows and keys of a product are multiples of this.
inline constexpr int kTileUnit = 32;
inline constexpr int kMostParts = 2;

// Of numbers in products of these types: 0 if no unit ever has them.
constexpr int most_parts(const KernelShape& shape) {
    const bool has_16_bits = shape.dtype == DType::bf16 || shape.dtype == DType::f16;
    return has_16_bits && shape.kv_dtype == shape.dtype ? kMostParts : 0;
}

// Outputs of f32 may be parts of a sum, and keep the bits of weights that products of parts round
// away.
constexpr bool may_round_weights(const AttentionArguments& in) {
    return (in.o_flags & kOutputF32) == 0;
}

// The unit that multiplies tiles of this launch. f16 that is not finite has no parts: tiles with it
// are multiplied in f32, as are all others if there is no unit.
Unit unit_for(const KernelShape& shape, const AttentionArguments& in);
constexpr bool needs_finite(DType dtype) { return dtype == DType::f16; }

// Packed numbers, of up to kMostParts parts, in the room of as many floats.
inline std::uint16_t* bits(float* room) { return reinterpret_cast<std::uint16_t*>(room); }
inline const std::uint16_t* bits(const float* room) {
    return reinterpret_cast<const std::uint16_t*>(room);
}
static_assert(kMostParts * sizeof(std::uint16_t) <= sizeof(float));

// Numbers of 16 bits from one packed query to the next.
constexpr std::int64_t query_stride(int dim) { return std::int64_t{kMostParts} * dim; }
// packed[padded][kMostParts][dim], with zeros in rows of padding.
Magnitude pack_queries(DType dtype, const RowList& rows, int dim, std::int64_t padded,
                       std::uint16_t* packed);
// The right sides of products, with zeros up to a multiple of the unit: packed[parts][room * dim].
Magnitude pack_keys(DType dtype, const RowList& keys, int dim, std::int64_t room,
                    std::uint16_t* packed);
Magnitude pack_values(DType dtype, const RowList& values, int dim, std::int64_t room,
                      std::uint16_t* packed);
// In place: weights[rows][stride] become all parts of 32 keys, then those of the next 32.
void pack_weights(DType dtype, std::int64_t rows, std::int64_t keys, float* weights,
                  std::int64_t stride);

struct TileProduct {
    Unit unit;
    DType dtype;
    int dim;
    std::int64_t rows, keys;
    std::int64_t first, room; // the first key, and the room of packed keys
};

// scores[row][j] = sum over d of queries[row][d] * keys[first + j][d]. scores[rows][stride].
void multiply_by_keys(const TileProduct& product, const std::uint16_t* queries,
                      const std::uint16_t* keys, float* scores, std::int64_t stride);
// out[row][d] (+)= sum over j of weights[row][j] * values[first + j][d]. out[rows][dim]; weights
// are packed.
void add_weighted_values(const TileProduct& product, const float* weights, std::int64_t stride,
                         const std::uint16_t* values, float* out, bool accumulate);

} // namespace flexc::cpu::parts
