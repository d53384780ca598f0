// Operands of what is added by key: the three parts of a number in units of products, and zeros, in
// bf16. All queries have the same operand, which is not zero for the parts alone: an infinite part
// times zero would be NaN.
#pragma once

#include "common/math.cuh"
#include "sm90/addend_parts.cuh"

namespace sm90 {

// Returns an addend of scores in units of products; finite numbers stay finite, also as exponents.
// per_product: factor from products to scores.
__device__ inline float in_products(float addend, float per_product) {
    constexpr float kMost = 0x1.62e42p127f; // times log2(e), the largest float
    const bool is_beyond = fabsf(addend) > kMost && fabsf(addend) <= kMostFinite;
    return multiply_finite(is_beyond ? copysignf(kMost, addend) : addend, 1 / per_product);
}

struct alignas(16) KeyAddend {
    int words[4]; // of the operand

    __device__ KeyAddend(float addend, float per_product) {
        const Parts parts(in_products(addend, per_product));
        words[0] = static_cast<int>(parts.middle | parts.high >> 16);
        words[1] = static_cast<int>(parts.low >> 16);
        words[2] = words[3] = 0;
    }
};

// Stores the queries' operand. The two halves of a step's columns are the same memory.
__device__ inline void store_key_unit(unsigned to) {
    constexpr int kHalf = 0x3f00; // of bf16
    store_shared(to, kHalf << 16 | kHalf, kHalf, 0, 0);
}

} // namespace sm90
