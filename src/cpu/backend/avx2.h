// Common code for processors with AVX2. Functions are compiled for it one by one, whatever the
// library is compiled for; callers check has_avx2() first.
#pragma once

#if defined(__x86_64__)

#include <cstdint>
#include <immintrin.h>

// Functions that are inlined into each other must have the same target.
#define FLEXC_AVX2 __attribute__((target("avx2,fma,f16c")))
#define FLEXC_AVX2_INLINE FLEXC_AVX2 __attribute__((always_inline)) static inline

namespace flexc::cpu::avx2 {

using Vector = __m256;
inline constexpr std::int64_t kLanes = 8;
inline constexpr int kSums = 8;         // of products that are computed at once, in registers
inline constexpr int kMostRows = kSums; // of queries, whose products they are
// What loops over rows prefetch, and into which cache: so many rows ahead, if they have no more
// bytes than that, and of a row further ahead a line, if it is not 0.
inline constexpr auto kPrefetchTo = _MM_HINT_T0;
inline constexpr bool kPrefetchesInOrder = false; // of memory, not of products
inline constexpr std::int64_t kRowsAhead = 16, kBytesAhead = 4096, kRowsFarAhead = 0;
inline constexpr std::int64_t kValuesAtOnce = 16; // rows of which some columns are summed

FLEXC_AVX2_INLINE Vector zero() { return _mm256_setzero_ps(); }
FLEXC_AVX2_INLINE Vector splat(float x) { return _mm256_set1_ps(x); }
FLEXC_AVX2_INLINE Vector load(const float* from) { return _mm256_loadu_ps(from); }
FLEXC_AVX2_INLINE void store(float* to, Vector x) { _mm256_storeu_ps(to, x); }
FLEXC_AVX2_INLINE Vector product(Vector x, Vector y) { return _mm256_mul_ps(x, y); }
FLEXC_AVX2_INLINE Vector fused(Vector x, Vector y, Vector z) { return _mm256_fmadd_ps(x, y, z); }

// The sum of each of eight vectors.
FLEXC_AVX2_INLINE Vector sums_of(const Vector* x) {
    const Vector low = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    const Vector high = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20),
                         _mm256_permute2f128_ps(low, high, 0x31));
}

// Eight elements of a type as floats.
struct LoadF32 {
    static constexpr std::int64_t kBytes = 4;
    FLEXC_AVX2_INLINE __m256 at(const char* from) {
        return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
    }
};
struct LoadF16 {
    static constexpr std::int64_t kBytes = 2;
    FLEXC_AVX2_INLINE __m256 at(const char* from) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    }
};
struct LoadBf16 {
    static constexpr std::int64_t kBytes = 2;
    FLEXC_AVX2_INLINE __m256 at(const char* from) {
        const __m256i wide =
            _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
    }
};

FLEXC_AVX2_INLINE __m128i load_eight_bytes(const char* from) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
}
struct LoadE4m3 {
    static constexpr std::int64_t kBytes = 1;
    // Converted by way of f16, whose exponent bias is larger by 8.
    FLEXC_AVX2_INLINE __m256 at(const char* from) {
        const __m128i bits = _mm_cvtepu8_epi16(load_eight_bytes(from));
        const __m128i magnitude = _mm_and_si128(bits, _mm_set1_epi16(0x7f));
        const __m128i sign = _mm_slli_epi16(_mm_srli_epi16(bits, 7), 15);
        const __m128i is_nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
        const __m128i half = _mm_or_si128(_mm_or_si128(_mm_slli_epi16(magnitude, 7), sign),
                                          _mm_and_si128(is_nan, _mm_set1_epi16(0x7e00)));
        return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256));
    }
};
struct LoadE5m2 {
    static constexpr std::int64_t kBytes = 1;
    FLEXC_AVX2_INLINE __m256 at(const char* from) {
        return _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), load_eight_bytes(from)));
    }
};
struct LoadI8 {
    static constexpr std::int64_t kBytes = 1;
    FLEXC_AVX2_INLINE __m256 at(const char* from) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_eight_bytes(from)));
    }
};

// Narrow types have a scale.
template <typename Load>
FLEXC_AVX2_INLINE __m256 load_scaled(const char* from, [[maybe_unused]] __m256 scale) {
    if constexpr (Load::kBytes == 1)
        return _mm256_mul_ps(Load::at(from), scale);
    else
        return Load::at(from);
}

} // namespace flexc::cpu::avx2

namespace flexc::cpu {

inline bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}

} // namespace flexc::cpu

#endif
