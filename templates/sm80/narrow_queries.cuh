// Converts queries to f16, the type in which they are multiplied by 8-bit keys.
#pragma once

#include "common/math.cuh"
#include "sm80/copy.cuh"
#include "sm80/forward_tiles.cuh"

namespace sm80 {

// Converts a tile in shared memory in place: a thread's rows from first_row on. Each row is divided
// by a power of two, by which factors[i] is multiplied. stores: whether this warp writes the rows.
template <typename E, int kTileRows, int kColumns>
__device__ inline void make_operands(Tile<E, kTileRows, kColumns>, int first_row, bool stores,
                                     float (&factors)[kRows]) {}

// Scales each row so that its largest element just fits into f16. The order of elements is that of
// load_a_beside, so that a thread reads what it has written.
template <int kTileRows, int kColumns>
__device__ inline void make_operands(Tile<flexc_bf16, kTileRows, kColumns> tile, int first_row,
                                     bool stores, float (&factors)[kRows]) {
    constexpr int kPadded = Tile<flexc_bf16, kTileRows, kColumns>::kPaddedColumns;
    const int lane = lane_index();
    const auto visit_pairs = [&](int i, auto visit) {
        const unsigned row = tile.at(first_row + 8 * i + lane / 4, lane % 4 * 4);
#pragma unroll
        for (int k = 0; k < kPadded; k += 16) {
            unsigned pairs[2];
            load_shared(pairs[0], pairs[1], row + 2 * k);
#pragma unroll
            for (int j = 0; j < 2; ++j)
                visit(row + 2 * k + 4 * j, flexc_first(flexc_bf16{}, pairs[j]),
                      flexc_second(flexc_bf16{}, pairs[j]));
        }
    };
    wait_for_copies();
    __syncthreads();
    float reciprocals[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        float largest = 0;
        visit_pairs(i, [&](unsigned, float x, float y) {
            largest = fmaxf(largest, fmaxf(fabsf(x), fabsf(y)));
        });
        // 2^15 times a power of two, whose reciprocal is a normal number too.
        const int exponent = __float_as_int(quad_max(largest)) >> 23;
        const int of_factor = max(exponent, 16) - 15;
        factors[i] *= __int_as_float(of_factor << 23);
        reciprocals[i] = __int_as_float((254 - of_factor) << 23);
    }
    __syncthreads(); // all warps have read them
    if (stores)
#pragma unroll
        for (int i = 0; i < kRows; ++i)
            visit_pairs(i, [&](unsigned at, float x, float y) {
                store_shared(at, pack<flexc_f16>(x * reciprocals[i], y * reciprocals[i]));
            });
    __syncthreads();
}

} // namespace sm80
