// The exponent, beside the reference score, to which the P of a query are relative. Its lowest bit
// is the same for all rows of a tile: whether any of them has a reference score other than 0.
#pragma once

#include "common/math.cuh"
#include "mod.cuh"

// From here on, rounding the log-sum-exp changes a weight by about as much as rounding the weight
// to the element type does.
constexpr float kLargeLse = sizeof(mod::Element) == 4 ? 0x1p10f : 0x1p13f;

__device__ inline bool is_large_lse(float lse) {
    return fabsf(lse) >= kLargeLse && fabsf(lse) <= kMostFinite;
}

__device__ inline float row_lse_log2(float exponent, bool tile_has_large_rows) {
    // An exponent this large makes every P zero, and unlike infinity it has mantissa bits to spare.
    const int bits = __float_as_int(exponent > 0x1p127f ? 0x1p127f : exponent);
    return __int_as_float(tile_has_large_rows ? bits | 1 : bits & ~1);
}
__device__ inline bool has_large_rows(float lse_log2) {
    return (__float_as_int(lse_log2) & 1) != 0;
}
