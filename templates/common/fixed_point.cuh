// Floats as fixed-point numbers: shared memory adds integers in one instruction, but floats in a
// loop.
#pragma once

#include "mod.cuh"

// Numbers are multiplied by the power of two that makes the largest of them a kBits integer, so
// that 2^(31 - kBits) of them can be added without overflow.
template <int kBits> struct FixedPoint {
    // Biased exponent of the least power of two whose inverse scale is a normal float.
    static constexpr int kLeastExponent = kBits + 1;
    float scale, inverse;

    // largest: the largest magnitude that will be converted, above 0.
    explicit __device__ FixedPoint(float largest) {
        const int exponent = max(__float_as_int(largest) >> 23, kLeastExponent);
        scale = __int_as_float((254 + kBits - 1 - exponent) << 23);
        inverse = __int_as_float((exponent - kBits + 1) << 23);
    }
    // Rounded by an addition, which is faster than a conversion.
    __device__ int operator()(float x) const {
        constexpr float kRounder = 0x1.8p23F;
        return __float_as_int(fmaf(x, scale, kRounder)) - __float_as_int(kRounder);
    }
    // The rounding error of operator(), as a fixed-point number with kBits more fraction bits.
    static constexpr float kUnitOfRest = 1.0F / (1 << kBits);
    __device__ int rest(float x, int whole) const {
        return (*this)(fmaf(static_cast<float>(whole), -inverse, x) * (1 << kBits));
    }
};
