// The matrix unit of a processor (AMX with bf16): whether launches use it, and what code for it
// shares.
#pragma once

#include <cstdint>

#include "cpu/backend_table.h"

namespace flexc::cpu::amx {

// Whether there is such a unit, this process may use it, and rows have a length that fits. Asks the
// kernel for permission the first time.
bool suits(int dim);

// Whether queries, keys and values of 16 bits suit it. Outputs of f32 keep more bits of weights
// than its products do.
inline bool suits(const KernelShape& shape, const AttentionArguments& in) {
    return shape.dtype == shape.kv_dtype && in.k.stride_d == 1 && in.v.stride_d == 1 &&
           (in.o_flags & kOutputF32) == 0 && suits(shape.head_dim) && suits(shape.head_dim_v);
}

// Rows in memory, in the order of their keys: `count` of them, and kNext more that may be read
// next. They are `stride` bytes apart from `data` on, or at `offsets` from it, if these are not
// null.
struct RowList {
    static constexpr std::int64_t kNext = 96;
    const char* data;
    std::int64_t stride;
    const std::int64_t* offsets;
    std::int64_t count;
};

} // namespace flexc::cpu::amx

#if defined(__x86_64__) && defined(__linux__)

#include <array>
#include <immintrin.h>

#define FLEXC_AMX                                                                                  \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-bf16")))
#define FLEXC_AMX_INLINE FLEXC_AMX __attribute__((always_inline)) static inline

namespace flexc::cpu::amx {

// Of a tile register: rows, and columns of floats or of pairs of bf16.
inline constexpr int kTileRows = 16, kTileColumns = 16;
inline constexpr int kPairs = 2 * kTileColumns; // bf16 numbers in a row of a tile
inline constexpr int kLineBytes = 64;

// What tile registers hold.
struct alignas(64) TileConfig {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};

    void set(int tile, int row_count, int bytes) {
        rows[tile] = static_cast<std::uint8_t>(row_count);
        row_bytes[tile] = static_cast<std::uint16_t>(bytes);
    }
};

// Intrinsics of GCC 12 do not say what memory they read: stands before and after them where it is
// written.
FLEXC_AMX_INLINE void compiler_barrier() { asm volatile("" : : : "memory"); }
FLEXC_AMX_INLINE void load_config(const TileConfig& config) {
    compiler_barrier();
    _tile_loadconfig(&config);
}

FLEXC_AMX_INLINE const char* row_at(const RowList& rows, std::int64_t row) {
    return rows.data + (rows.offsets != nullptr ? rows.offsets[row] : row * rows.stride);
}

// out[j][i] = in[i][j] of 16 rows of 16 numbers.
FLEXC_AMX_INLINE void transpose(__m512i (&x)[16]) {
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
FLEXC_AMX_INLINE __m512 rounded(__m512 x) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), upper));
}

// The upper halves of 32 floats.
FLEXC_AMX_INLINE __m512i upper_halves(__m512 low, __m512 high) {
    alignas(64) static constexpr auto kOdd = [] {
        std::array<std::uint16_t, 32> odd{};
        for (std::uint16_t i = 0; i < 32; ++i)
            odd[i] = static_cast<std::uint16_t>(2 * i + 1);
        return odd;
    }();
    return _mm512_permutex2var_epi16(_mm512_castps_si512(low), _mm512_load_si512(kOdd.data()),
                                     _mm512_castps_si512(high));
}

} // namespace flexc::cpu::amx

#endif
