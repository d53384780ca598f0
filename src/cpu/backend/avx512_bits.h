// Floats as bf16 numbers, and squares of numbers, by AVX-512.
#pragma once

#if defined(__x86_64__)

#include <array>

#include "cpu/backend/avx512.h"

namespace flexc::cpu::avx512 {

// out[j][i] = in[i][j] of 16 rows of 16 numbers.
FLEXC_AVX512_INLINE void transpose(__m512i (&x)[16]) {
    __m512i pairs[16], fours[16];
    for (int i = 0; i < 16; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        const __m512i a = _mm512_shuffle_i32x4(fours[i], fours[4 + i], 0x88);
        const __m512i b = _mm512_shuffle_i32x4(fours[i], fours[4 + i], 0xdd);
        const __m512i c = _mm512_shuffle_i32x4(fours[8 + i], fours[12 + i], 0x88);
        const __m512i d = _mm512_shuffle_i32x4(fours[8 + i], fours[12 + i], 0xdd);
        x[i] = _mm512_shuffle_i32x4(a, c, 0x88);
        x[4 + i] = _mm512_shuffle_i32x4(b, d, 0x88);
        x[8 + i] = _mm512_shuffle_i32x4(a, c, 0xdd);
        x[12 + i] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
}

// To bf16, as floats. NaN may become zero.
FLEXC_AVX512_INLINE __m512 rounded(__m512 x) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), upper));
}

// The upper halves of 32 floats.
FLEXC_AVX512_INLINE __m512i upper_halves(__m512 low, __m512 high) {
    alignas(64) static constexpr auto kOdd = [] {
        std::array<std::uint16_t, 32> odd{};
        for (std::uint16_t i = 0; i < 32; ++i)
            odd[i] = static_cast<std::uint16_t>(2 * i + 1);
        return odd;
    }();
    return _mm512_permutex2var_epi16(_mm512_castps_si512(low), _mm512_load_si512(kOdd.data()),
                                     _mm512_castps_si512(high));
}

} // namespace flexc::cpu::avx512

#endif
