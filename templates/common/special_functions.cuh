// Program functions that use the special function unit. Those with `fast` or `rough` in their names
// replace others where passes/precision.h allows it.
#pragma once

#include "common/instructions.cuh"
#include "common/math.cuh"

__device__ inline float flexc_exp(float x) { return expf(x); }
__device__ inline float flexc_fast_exp(float x) { return exp2_fast(x * kLog2E); }

// Odd polynomial where 1 - 2 / (e^2x + 1) would cancel; relative error below 1e-6.
__device__ inline float flexc_tanh(float x) {
    const float size = fabsf(x);
    const float large = fmaf(-2.0f, reciprocal_fast(exp2_fast(size * (2 * kLog2E)) + 1), 1.0f);
    const float square = x * x;
    float series = fmaf(square, 2.1869488e-2f, -5.3968254e-2f);
    series = fmaf(square, series, 0.13333333f);
    series = fmaf(square, series, -0.33333333f);
    const float small = fmaf(x * square, series, x);
    return size < 0.3f ? small : copysignf(large, x);
}

__device__ inline float flexc_sigmoid(float x) { return 1 / (1 + expf(-x)); }
// 0 below 2^-126.
__device__ inline float flexc_fast_sigmoid(float x) {
    return reciprocal_fast(1 + exp2_fast(-x * kLog2E));
}
__device__ inline float flexc_rough_sigmoid(float x) {
    return fmaf(tanh_fast(0.5f * x), 0.5f, 0.5f);
}

__device__ inline float flexc_softplus(float x) {
    return max_nan(x, 0) + log1pf(flexc_exp(-fabsf(x)));
}
// Uses a polynomial for log1p(y) / y on [0, 1]; relative error below 1e-6.
__device__ inline float flexc_fast_softplus(float x) {
    const float y = exp2_fast(fabsf(x) * -kLog2E);
    float series = fmaf(y, -8.5385442e-3f, 4.4087190e-2f);
    series = fmaf(y, series, -0.10767813f);
    series = fmaf(y, series, 0.17744974f);
    series = fmaf(y, series, -0.24495356f);
    series = fmaf(y, series, 0.33275458f);
    series = fmaf(y, series, -0.49997403f);
    series = fmaf(y, series, 0.99999981f);
    return fmaf(y, series, max_nan(x, 0));
}

// Uses a polynomial for atanh(erf(x)) / x up to where erf(x) is 1; relative error below 2^-14, plus
// that of the tanh instruction.
__device__ inline float flexc_rough_erf(float x) {
    const float square = fminf(x * x, 7.0f);
    const float slope = fmaf(square, fmaf(square, -1.6163779e-3f, 0.10364227f), 1.1283138f);
    return tanh_fast(x * slope);
}
