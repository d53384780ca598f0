// Units of what comes with products, and its operands: for what is added by key the three parts of
// a number in units of products, and zeros, in bf16. All queries have the same operand, which is
// not zero for the parts alone: an infinite part times zero would be NaN.
#pragma once

#include "common/math.cuh"
#include "sm90/addend_parts.cuh"

namespace sm90 {

// Stands for a factor of products that is NaN; smaller than all that are used.
constexpr float kNanFactor = 0x1p-100f;
// Returns a factor that hidden and finite products may have as well as infinite ones: not zero, and
// no NaN. What it leaves of a product is nothing beside a score's rounding.
__device__ inline float usable_factor(float factor) {
    constexpr float kLeast = 0x1p-64f;
    if (factor != factor) return kNanFactor;
    return fabsf(factor) < kLeast ? copysignf(kLeast, factor) : factor;
}

// Returns an addend of scores in units of products; finite numbers stay finite, also as exponents.
// per_product: factor from products to scores.
__device__ inline float in_products(float addend, float per_product) {
    constexpr float kMost = 0x1.62e42p127f; // times log2(e), the largest float
    const bool is_beyond = fabsf(addend) > kMost && fabsf(addend) <= kMostFinite;
    return multiply_finite(is_beyond ? copysignf(kMost, addend) : addend, 1 / per_product);
}

// Converts functions of the distance to units of products where these are added to them.
struct DistanceUnits {
    float scale;
    __device__ float operator()(const mod::At& at, float value) const {
        return mod::TabulatedVectors::kDistancesComeFirst
                   ? in_products(value, scale * mod::multiplier(at))
                   : value;
    }
};

struct alignas(16) KeyAddend {
    int words[4]; // of the operand

    __device__ KeyAddend(float addend, float per_product) {
        const Parts parts(in_products(addend, per_product));
        words[0] = static_cast<int>(parts.middle | parts.high >> 16);
        words[1] = static_cast<int>(parts.low >> 16);
        words[2] = words[3] = 0;
    }
};

// The operands of a product of a number of the row and one of the key, whose parts h and u are
// multiplied in the order of their columns h1 u1, h1 u2, h1 u3, h2 u1, h2 u2, h3 u1: what is left
// out is less than a float's last bit.
class FactorParts : public Parts {
  public:
    // No part of a number is zero, since an infinite part of the other times 0 would be NaN.
    __device__ explicit FactorParts(float x) : Parts(x) {
        if (x == 0) return;
        const unsigned least = 0x00800000u | (__float_as_uint(x) & 0x80000000u);
        if (middle << 1 == 0) middle = least;
        if (low << 1 == 0) low = least;
    }
};
__device__ inline void store_row_factor(unsigned to, float factor) {
    const FactorParts h(factor);
    store_shared(to, static_cast<int>(h.high | h.high >> 16),
                 static_cast<int>(h.middle | h.high >> 16),
                 static_cast<int>(h.low | h.middle >> 16), 0);
}
struct alignas(16) KeyFactor {
    int words[4];

    __device__ KeyFactor(float factor, float per_product) {
        const FactorParts u(in_products(factor, per_product));
        words[0] = static_cast<int>(u.middle | u.high >> 16);
        words[1] = static_cast<int>(u.high | u.low >> 16);
        words[2] = static_cast<int>(u.high | u.middle >> 16);
        words[3] = 0;
    }
};

// Store the operands of a slope: three parts of it, and a key's place in its tile.
__device__ inline void store_slope(unsigned to, float slope, float per_product) {
    const KeyAddend addend(slope, per_product);
    store_shared(to, addend.words[0], addend.words[1], 0, 0);
}
__device__ inline void store_slope_key(unsigned to, int key) {
    const int half = static_cast<int>(__float_as_uint(0.5f * static_cast<float>(key)) >> 16);
    store_shared(to, half << 16 | half, half, 0, 0);
}

// Stores the queries' operand. The two halves of a step's columns are the same memory.
__device__ inline void store_key_unit(unsigned to) {
    constexpr int kHalf = 0x3f00; // of bf16
    store_shared(to, kHalf << 16 | kHalf, kHalf, 0, 0);
}

} // namespace sm90
