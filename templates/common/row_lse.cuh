// What the P of a query are relative to, beside a reference score: an exponent, whose lowest
// bit says of all rows of a tile whether some of them have a reference score that is not 0.
#pragma once

#include "common/math.cuh"
#include "mod.cuh"

// From here on a weight that is computed from a rounded log-sum-exp is off by about as much as one
// that was rounded to the type of elements.
constexpr float kLargeLse = sizeof(mod::Element) == 4 ? 0x1p10f : 0x1p13f;

__device__ inline bool is_large_lse(float lse) {
    return fabsf(lse) >= kLargeLse && fabsf(lse) <= kMostFinite;
}

__device__ inline float row_lse_log2(float exponent, bool tile_has_large_rows) {
    // Any exponent so large makes every P zero, and unlike infinity it has bits to spare.
    const int bits = __float_as_int(exponent > 0x1p127f ? 0x1p127f : exponent);
    return __int_as_float(tile_has_large_rows ? bits | 1 : bits & ~1);
}
__device__ inline bool has_large_rows(float lse_log2) {
    return (__float_as_int(lse_log2) & 1) != 0;
}
