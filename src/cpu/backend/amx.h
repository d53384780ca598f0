// The matrix unit of a processor (AMX with bf16): whether launches use it, and what code for it
// shares.
#pragma once

#include <cstdint>

namespace flexc::cpu::amx {

// Whether there is such a unit, this process may use it, and rows have a length that fits. Asks the
// kernel for permission the first time.
bool suits(int dim);

} // namespace flexc::cpu::amx

#if defined(__x86_64__) && defined(__linux__)

#include "cpu/backend/avx512.h"

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

} // namespace flexc::cpu::amx

#endif
