// Products of tiles of many queries by the matrix unit (AMX). Numbers are sums of bf16 parts: one
// for bf16, two for f16, which they equal, and two for weights, of which they keep 16 bits. Sums
// are in f32.
#pragma once

#include <cstdint>

#include "cpu/backend/amx.h"
#include "cpu/backend/tensors.h"

namespace flexc::cpu::amx {

// Numbers of rows and keys of a product are multiples of this.
inline constexpr int kTileUnit = 32;
inline constexpr int kMostParts = 2;

// Of numbers in products of these types: 0 if the unit never has them.
constexpr int most_parts(const KernelShape& shape) {
    const bool has_16_bits = shape.dtype == DType::bf16 || shape.dtype == DType::f16;
    return has_16_bits && shape.kv_dtype == shape.dtype ? kMostParts : 0;
}

// Whether tiles of this launch are multiplied by the unit. f16 that is not finite has no parts:
// tiles with it are multiplied in f32, as are all others if this is false.
bool suits_tiles(const KernelShape& shape, const AttentionArguments& in);
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
// In place: weights[rows][stride] become both parts of 32 keys, then those of the next 32.
void pack_weights(std::int64_t rows, std::int64_t keys, float* weights, std::int64_t stride);

struct TileProduct {
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

} // namespace flexc::cpu::amx
