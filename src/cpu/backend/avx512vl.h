// The same as avx2.h with the registers of AVX-512, for its processors whose multipliers have 256
// bits: vectors of 512 bits are two operations there, and their lanes take more additions.
#pragma once

#if defined(__x86_64__)

#include <cpuid.h>

#include "cpu/backend/avx512.h"

#define FLEXC_AVX512VL                                                                             \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define FLEXC_AVX512VL_INLINE FLEXC_AVX512VL __attribute__((always_inline)) static inline

namespace flexc::cpu::avx512vl {

using avx2::Vector, avx2::kLanes;
inline constexpr int kSums = 16, kMostRows = 4;
// The first-level cache of these processors waits for few lines at once, the second one for more.
inline constexpr auto kPrefetchTo = _MM_HINT_T1;
inline constexpr bool kPrefetchesInOrder = true;
inline constexpr std::int64_t kRowsAhead = 64, kBytesAhead = 65536, kRowsFarAhead = 0;
inline constexpr std::int64_t kValuesAtOnce = 32;
inline constexpr std::int64_t kKeysAtOnce = 32; // of one head, before those of the next one
inline constexpr std::int64_t kPairBytesAhead = 8192; // of values that are multiplied in pairs

using avx2::LoadF32, avx2::LoadF16, avx2::LoadE4m3, avx2::LoadE5m2, avx2::LoadI8;
using avx2::zero, avx2::splat, avx2::load, avx2::store, avx2::product, avx2::fused,
    avx2::load_scaled;

struct LoadBf16 : avx2::LoadBf16 {
    // Sixteen elements, widened by one operation for each vector: the first and third four of them,
    // and the others. Sums in that order are loaded and stored likewise.
    FLEXC_AVX512VL_INLINE void pair_at(const char* from, Vector& first, Vector& second) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        const __m256i none = _mm256_setzero_si256();
        first = _mm256_castsi256_ps(_mm256_unpacklo_epi16(none, bits));
        second = _mm256_castsi256_ps(_mm256_unpackhi_epi16(none, bits));
    }
    FLEXC_AVX512VL_INLINE Vector load_sums(const float* from) {
        return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from)),
                                    _mm_loadu_ps(from + 8), 1);
    }
    FLEXC_AVX512VL_INLINE void store_sums(float* to, Vector sums) {
        _mm_storeu_ps(to, _mm256_castps256_ps128(sums));
        _mm_storeu_ps(to + 8, _mm256_extractf128_ps(sums, 1));
    }
};

// The sum of each of eight vectors: halves the number of partial sums three times, each time by a
// shuffle and a blend of two vectors.
FLEXC_AVX512VL_INLINE Vector add_pairs(Vector x, Vector y) {
    const __m256d other = _mm256_shuffle_pd(_mm256_castps_pd(x), _mm256_castps_pd(y), 0x5);
    return _mm256_add_ps(_mm256_blend_ps(x, y, 0xcc), _mm256_castpd_ps(other));
}
FLEXC_AVX512VL_INLINE Vector add_singles(Vector x, Vector y) {
    const __m256i other = _mm256_setr_epi32(1, 8, 3, 10, 5, 12, 7, 14);
    return _mm256_add_ps(_mm256_blend_ps(x, y, 0xaa), _mm256_permutex2var_ps(x, other, y));
}
FLEXC_AVX512VL_INLINE Vector sums_of_four(const Vector* x) {
    return add_singles(add_pairs(x[0], x[2]), add_pairs(x[1], x[3]));
}
FLEXC_AVX512VL_INLINE Vector sums_of(const Vector* x) {
    const Vector low = sums_of_four(x), high = sums_of_four(x + 4);
    return _mm256_add_ps(_mm256_blend_ps(low, high, 0xf0), _mm256_permute2f128_ps(low, high, 0x21));
}

// Pairs of bf16 numbers, which are multiplied without being widened. Products are exact, and sums
// are of f32.
inline constexpr std::int64_t kPairs = 2 * kLanes; // numbers in a vector
struct PairsOfBf16 {
    using Number = std::uint16_t;
    static constexpr std::int64_t kBytes = 2, kNumbers = kPairs;
    FLEXC_AVX512VL_INLINE Vector at(const char* from) {
        return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
    }
    FLEXC_AVX512VL_INLINE Vector of_row(const Number* from) {
        return at(reinterpret_cast<const char*>(from));
    }
    FLEXC_AVX512VL_INLINE Vector fused(Vector x, Vector y, Vector z) {
        return _mm256_dpbf16_ps(z, reinterpret_cast<__m256bh>(x), reinterpret_cast<__m256bh>(y));
    }
};

// Whether the processor is one of these, and rows are whole vectors. Those of AMD say how wide
// their multipliers are.
inline bool suits(int dim) {
    static const bool is_there = [] {
        constexpr unsigned kLeaf = 0x8000001a, k512Bits = 1u << 3;
        unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
        return __builtin_cpu_is("amd") && avx512::suits(avx512::kLanes) &&
               __builtin_cpu_supports("avx512bf16") &&
               __get_cpuid(kLeaf, &eax, &ebx, &ecx, &edx) != 0 && (eax & k512Bits) == 0;
    }();
    return is_there && dim % kLanes == 0;
}

} // namespace flexc::cpu::avx512vl

#endif
