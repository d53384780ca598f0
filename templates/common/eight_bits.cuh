// Numbers of eight bits, as storage, and their way to 16-bit floats, which can hold every one.
#pragma once

#include "common/element.cuh"
#include "common/instructions.cuh"

struct flexc_e4m3 { // no infinity; the largest magnitude is NaN
    unsigned char bits;
};
struct flexc_e5m2 {
    unsigned char bits;
};

// Of four numbers in one word: two words with two each, in order. The first template argument is
// what they are, the second what they become.
struct WidePairs {
    unsigned first, second;
};
template <typename Narrow, typename Wide> struct Widening;

template <> struct Widening<flexc_e5m2, flexc_f16> {
    // The upper halves of f16.
    static __device__ WidePairs of(unsigned four) {
        return {__byte_perm(four, 0, 0x1404), __byte_perm(four, 0, 0x3424)};
    }
};

template <> struct Widening<flexc_e4m3, flexc_f16> {
    static __device__ WidePairs of(unsigned four) {
#if __CUDA_ARCH__ >= 890
        return {f16x2_from_e4m3x2(four), f16x2_from_e4m3x2(four >> 16)};
#else
        const WidePairs upper = Widening<flexc_e5m2, flexc_f16>::of(four);
        return {of_upper(upper.first), of_upper(upper.second)};
#endif
    }

  private:
    // One bit further to the right they are f16, but for the exponent, whose bias is 8 less.
    static __device__ unsigned of_upper(unsigned pair) {
        constexpr unsigned k256 = 0x5c005c00u, k448 = 0x5f005f00u;
        const unsigned magnitude = multiply_f16x2((pair & 0x7f007f00u) >> 1, k256);
        return (pair & 0x80008000u) | magnitude | greater_f16x2(magnitude, k448);
    }
};

template <> struct Widening<signed char, flexc_f16> {
    // 1024 + 128 + x is an f16 whose low byte is 128 + x.
    static __device__ WidePairs of(unsigned four) {
        constexpr unsigned kMinus1152 = 0xe480e480u, kUpper1024 = 0x64646464u;
        const unsigned shifted = four ^ 0x80808080u;
        return {add_f16x2(__byte_perm(shifted, kUpper1024, 0x4140), kMinus1152),
                add_f16x2(__byte_perm(shifted, kUpper1024, 0x4342), kMinus1152)};
    }
};

// The upper halves of floats.
template <typename Narrow> struct Widening<Narrow, flexc_bf16> {
    static __device__ WidePairs of(unsigned four) {
        const WidePairs pairs = Widening<Narrow, flexc_f16>::of(four);
        return {of_f16x2(pairs.first), of_f16x2(pairs.second)};
    }

  private:
    static __device__ unsigned of_f16x2(unsigned pair) {
        return __byte_perm(__float_as_uint(flexc_first(flexc_f16{}, pair)),
                           __float_as_uint(flexc_second(flexc_f16{}, pair)), 0x7632);
    }
};
