// Powers of two of a row's columns: the special function unit has an eighth of the lanes that
// multiply and add, so that where the score mod needs it too, polynomials take part of them.
#pragma once

#include "common/instructions.cuh"
#include "common/math.cuh"

namespace sm90 {

// 2^x for x below 127, with multiplications and additions: 2^n * 2^r, n whole and |r| at most a
// half. Relative error below 2^-18; 0 below -127, NaN of NaN.
__device__ inline float exp2_polynomial(float x) {
    constexpr float kRounder = 0x1.8p23F + 127; // ends in the bits of an exponent
    x = max_nan(x, -127);
    const float rounded = x + kRounder;
    const float r = x - (rounded - kRounder);
    float series = fmaf(r, 9.5828553e-3f, 5.5906434e-2f);
    series = fmaf(r, series, 0.24024099f);
    series = fmaf(r, series, 0.69312419f);
    series = fmaf(r, series, 1);
    return series * __uint_as_float(__float_as_uint(rounded) << 23);
}

// Returns whether a column's power is a polynomial: mod::ForwardSchedule::kPolynomials of eight
// columns are, spread evenly.
__device__ constexpr bool is_polynomial(int column) {
    return (column + 1) * mod::ForwardSchedule::kPolynomials / 8 !=
           column * mod::ForwardSchedule::kPolynomials / 8;
}
__device__ inline float exponential(float x, int column) {
    return is_polynomial(column) ? exp2_polynomial(x) : exp2_fast(x);
}

} // namespace sm90
