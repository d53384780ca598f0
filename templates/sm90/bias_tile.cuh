// Biases of a tile, one number for each query and key: how they lie in shared memory, and a
// thread's part of them in registers.
#pragma once

#include "mod.cuh"
#include "sm90/forward_layout.h"
#include "sm90/warpgroup.cuh"

namespace sm90 {

constexpr int kBiasBytes = sizeof(mod::DenseBias::Element), kBiasChunk = 16; // bytes of a copy
constexpr bool kReadsBias = mod::kSizes.bias_bytes != 0;
constexpr bool kReadsShifts = mod::kSizes.shifted_bytes != 0;
constexpr BiasTileLayout kBiasTile = bias_tile_layout(mod::kQueryTile, mod::kKeyTile, kBiasBytes);
static_assert(!kReadsBias || mod::kSizes.bias_bytes == kBiasBytes);

// Returns the address of a chunk an even number of chunks further, from one of a row's first two.
constexpr __device__ unsigned later_bias_chunk(unsigned from, int chunks) {
    if (!kBiasTile.is_swizzled) return from + chunks * kBiasChunk;
    constexpr int kPanelChunks = kBiasTile.row_bytes / kBiasChunk;
    return (from ^ chunks % kPanelChunks * kBiasChunk) +
           chunks / kPanelChunks * kBiasTile.panel_bytes;
}
// Returns the offset of a row's chunk in a tile.
constexpr __device__ int bias_chunk_at(int row, int chunk) {
    const int first = (kBiasTile.is_swizzled ? chunk % 2 ^ row % 8 : chunk % 2) * kBiasChunk;
    return static_cast<int>(
        later_bias_chunk(static_cast<unsigned>(row * kBiasTile.row_bytes + first), chunk / 2 * 2));
}

// A thread's biases of a tile, in the layout of accumulators.
class BiasFragment {
    static constexpr int kPairs = kReadsBias ? mod::kKeyTile / 8 : 1; // of each row
    static constexpr bool kHasPairsOfHalves = kBiasBytes == 2;

  public:
    static constexpr int kPartPairs = 2; // pairs of a row that are loaded together
    static constexpr int kLeastPairs = kHasPairsOfHalves ? 2 : 1;

    // rows: the address of the warp's first row in shared memory.
    __device__ void load(unsigned rows) {
#pragma unroll
        for (int pair = 0; pair < kPairs; pair += kPartPairs)
            load(rows, pair, pair);
    }
    // Loads pairs of columns from number `first` on, and keeps them from number `to` on.
    template <int kCount = kPartPairs> __device__ void load(unsigned rows, int first, int to) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        if constexpr (kHasPairsOfHalves) {
            static_assert(kCount == 2);
            // Each lane names a row of one of four 8 x 8 matrices, two of them side by side.
            const unsigned from = rows + bias_chunk_at(lane % 16, lane / 16);
            load_matrices(later_bias_chunk(from, first), words_[0][to], words_[1][to],
                          words_[0][to + 1], words_[1][to + 1]);
        } else {
#pragma unroll
            for (int pair = first; pair < first + kCount; ++pair)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const unsigned from = rows + bias_chunk_at(lane / 4 + 8 * r, lane % 4 / 2);
                    load_shared(later_bias_chunk(from, pair * 2) + lane % 2 * 8,
                                floats_[r][to + pair - first]);
                }
        }
    }

    // Returns the bias of the thread's j-th column.
    __device__ float at(int row, int j) const {
        if constexpr (!kHasPairsOfHalves) return floats_[row][j / 2][j % 2];
        const unsigned word = words_[row][j / 2];
        return j % 2 != 0 ? flexc_second(Half{}, word) : flexc_first(Half{}, word);
    }

  private:
    template <typename E, bool kIsHalf> struct HalfOf {
        using Type = E;
    };
    template <typename E> struct HalfOf<E, false> {
        using Type = flexc_bf16;
    };
    using Half = typename HalfOf<mod::DenseBias::Element, kHasPairsOfHalves>::Type;

    unsigned words_[2][kHasPairsOfHalves ? kPairs : 1];
    float floats_[2][kHasPairsOfHalves ? 1 : kPairs][2];
};

} // namespace sm90
