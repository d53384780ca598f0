// Floats as whole numbers, which shared memory adds in one instruction, floats in a loop of
// several.
#pragma once

#include "mod.cuh"

// Numbers are multiplied by a power of two that makes the largest of them one of kBits, so that
// sums of 2^(31 - kBits) have room.
template <int kBits> struct FixedPoint {
    // Of the lowest whose inverse scale is a float.
    static constexpr int kLeastExponent = kBits + 1;
    float scale, inverse;

    // largest: of what will be converted, above 0.
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
    // What that leaves of x, in units of kBits more.
    static constexpr float kUnitOfRest = 1.0F / (1 << kBits);
    __device__ int rest(float x, int whole) const {
        return (*this)(fmaf(static_cast<float>(whole), -inverse, x) * (1 << kBits));
    }
};
