// 8-bit numbers as storage types, and their conversion to f16, which represents all of them
// exactly.
#pragma once

#include "common/instructions.cuh"

struct flexc_e4m3 { // no infinity; the largest magnitude is NaN
    unsigned char bits;
};
struct flexc_e5m2 {
    unsigned char bits;
};

// Two pairs of f16, from four 8-bit numbers in one word, in the same order.
struct F16Pairs {
    unsigned first, second;
};
template <typename Narrow> F16Pairs widen(unsigned four);

// An e5m2 number is the upper byte of an f16.
template <> __device__ inline F16Pairs widen<flexc_e5m2>(unsigned four) {
    return {__byte_perm(four, 0, 0x1404), __byte_perm(four, 0, 0x3424)};
}

#if __CUDA_ARCH__ >= 890
template <> __device__ inline F16Pairs widen<flexc_e4m3>(unsigned four) {
    F16Pairs pairs;
    f16x4_from_e4m3x4(pairs.first, pairs.second, four);
    return pairs;
}
#else
// In the upper byte of an f16, an e4m3 number lies one bit too far left, and its exponent's bias is
// less by 8.
__device__ inline unsigned f16x2_from_upper_e4m3(unsigned pair) {
    constexpr unsigned k256 = 0x5c005c00u, k448 = 0x5f005f00u;
    const unsigned magnitude = multiply_f16x2((pair & 0x7f007f00u) >> 1, k256);
    return (pair & 0x80008000u) | magnitude | greater_f16x2(magnitude, k448);
}
template <> __device__ inline F16Pairs widen<flexc_e4m3>(unsigned four) {
    const F16Pairs upper = widen<flexc_e5m2>(four);
    return {f16x2_from_upper_e4m3(upper.first), f16x2_from_upper_e4m3(upper.second)};
}
#endif

// 1024 + 128 + x is an f16 whose low byte is 128 + x.
template <> __device__ inline F16Pairs widen<signed char>(unsigned four) {
    constexpr unsigned kMinus1152 = 0xe480e480u, kUpper1024 = 0x64646464u;
    const unsigned shifted = four ^ 0x80808080u;
    return {add_f16x2(__byte_perm(shifted, kUpper1024, 0x4140), kMinus1152),
            add_f16x2(__byte_perm(shifted, kUpper1024, 0x4342), kMinus1152)};
}
