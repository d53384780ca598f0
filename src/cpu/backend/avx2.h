// What code for processors with AVX2 shares. Functions are compiled for it one by one, whatever the
// library is compiled for; whoever calls them asks has_avx2() first.
#pragma once

#if defined(__x86_64__)

#include <cstdint>
#include <immintrin.h>

// Functions that are inlined into each other have to have the same.
#define FLEXC_AVX2 __attribute__((target("avx2,fma,f16c")))
#define FLEXC_AVX2_INLINE FLEXC_AVX2 __attribute__((always_inline)) static inline

namespace flexc::cpu::avx2 {

inline constexpr std::int64_t kLanes = 8;

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

} // namespace flexc::cpu::avx2

namespace flexc::cpu {

inline bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}

} // namespace flexc::cpu

#endif
