// The same as avx2.h for processors with AVX-512.
#pragma once

#if defined(__x86_64__)

#include "cpu/backend/avx2.h"

#define FLEXC_AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")))
#define FLEXC_AVX512_INLINE FLEXC_AVX512 __attribute__((always_inline)) static inline

namespace flexc::cpu::avx512 {

using Vector = __m512;
inline constexpr std::int64_t kLanes = 16;
inline constexpr int kSums = 16;        // of products that are computed at once, in registers
inline constexpr int kMostRows = kSums; // of queries, whose products they are
// What loops over rows prefetch, and into which cache: so many rows ahead, if they have no more
// bytes than that, and of a row further ahead a line, if it is not 0.
inline constexpr auto kPrefetchTo = _MM_HINT_T0;
inline constexpr bool kPrefetchesInOrder = false; // of memory, not of products
inline constexpr std::int64_t kRowsAhead = 16, kBytesAhead = 4096, kRowsFarAhead = 64;
inline constexpr std::int64_t kValuesAtOnce = 16; // rows of which some columns are summed

FLEXC_AVX512_INLINE Vector zero() { return _mm512_setzero_ps(); }
FLEXC_AVX512_INLINE Vector splat(float x) { return _mm512_set1_ps(x); }
FLEXC_AVX512_INLINE Vector load(const float* from) { return _mm512_loadu_ps(from); }
FLEXC_AVX512_INLINE void store(float* to, Vector x) { _mm512_storeu_ps(to, x); }
FLEXC_AVX512_INLINE Vector product(Vector x, Vector y) { return _mm512_mul_ps(x, y); }
FLEXC_AVX512_INLINE Vector fused(Vector x, Vector y, Vector z) { return _mm512_fmadd_ps(x, y, z); }

// The sum of each of sixteen vectors: halves the number of partial sums four times, each time by a
// shuffle and a blend of two vectors: only one port computes shuffles.
FLEXC_AVX512_INLINE Vector add_pairs(Vector x, Vector y) {
    const __m512d other = _mm512_shuffle_pd(_mm512_castps_pd(x), _mm512_castps_pd(y), 0x55);
    return _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, x, y), _mm512_castpd_ps(other));
}
FLEXC_AVX512_INLINE Vector add_singles(Vector x, Vector y) {
    const __m512i other =
        _mm512_setr_epi32(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30);
    return _mm512_add_ps(_mm512_mask_blend_ps(0xaaaa, x, y), _mm512_permutex2var_ps(x, other, y));
}
FLEXC_AVX512_INLINE Vector add_halves(Vector x, Vector y) {
    return _mm512_add_ps(_mm512_mask_blend_ps(0xff00, x, y), _mm512_shuffle_f32x4(x, y, 0x4e));
}
FLEXC_AVX512_INLINE Vector add_quarters(Vector x, Vector y) {
    const __m512i order = _mm512_setr_epi64(2, 3, 8, 9, 6, 7, 12, 13);
    const __m512d other = _mm512_permutex2var_pd(_mm512_castps_pd(x), order, _mm512_castps_pd(y));
    return _mm512_add_ps(_mm512_mask_blend_ps(0xf0f0, x, y), _mm512_castpd_ps(other));
}
FLEXC_AVX512_INLINE Vector sums_of(const Vector* x) {
    Vector of_four[4]; // of each, four partial sums, one in each quarter of the vector
    for (int i = 0; i < 4; ++i)
        of_four[i] =
            add_singles(add_pairs(x[4 * i], x[4 * i + 2]), add_pairs(x[4 * i + 1], x[4 * i + 3]));
    return add_quarters(add_halves(of_four[0], of_four[2]), add_halves(of_four[1], of_four[3]));
}

// Sixteen elements of a type as floats.
struct LoadF32 {
    static constexpr std::int64_t kBytes = 4;
    FLEXC_AVX512_INLINE Vector at(const char* from) {
        return _mm512_loadu_ps(reinterpret_cast<const float*>(from));
    }
};
struct LoadF16 {
    static constexpr std::int64_t kBytes = 2;
    FLEXC_AVX512_INLINE Vector at(const char* from) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    }
};
struct LoadBf16 {
    static constexpr std::int64_t kBytes = 2;
    FLEXC_AVX512_INLINE Vector at(const char* from) {
        const __m512i wide =
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
        return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
    }
};

FLEXC_AVX512_INLINE __m128i load_sixteen_bytes(const char* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
struct LoadE4m3 {
    static constexpr std::int64_t kBytes = 1;
    // Converted by way of f16, whose exponent bias is larger by 8.
    FLEXC_AVX512_INLINE Vector at(const char* from) {
        const __m256i bits = _mm256_cvtepu8_epi16(load_sixteen_bytes(from));
        const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi16(0x7f));
        const __m256i sign = _mm256_slli_epi16(_mm256_srli_epi16(bits, 7), 15);
        const __m256i is_nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
        const __m256i half = _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign),
                                             _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7e00)));
        return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256));
    }
};
struct LoadE5m2 {
    static constexpr std::int64_t kBytes = 1;
    FLEXC_AVX512_INLINE Vector at(const char* from) {
        return _mm512_cvtph_ps(
            _mm256_slli_epi16(_mm256_cvtepu8_epi16(load_sixteen_bytes(from)), 8));
    }
};
struct LoadI8 {
    static constexpr std::int64_t kBytes = 1;
    FLEXC_AVX512_INLINE Vector at(const char* from) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_sixteen_bytes(from)));
    }
};

// Narrow types have a scale.
template <typename Load>
FLEXC_AVX512_INLINE Vector load_scaled(const char* from, [[maybe_unused]] Vector scale) {
    if constexpr (Load::kBytes == 1)
        return _mm512_mul_ps(Load::at(from), scale);
    else
        return Load::at(from);
}

// Whether the processor has AVX-512, and rows are whole vectors.
inline bool suits(int dim) {
    return dim % kLanes == 0 && has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

} // namespace flexc::cpu::avx512

#endif
