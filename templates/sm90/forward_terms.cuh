// Vectors that were expanded before the forward: slices of them lie beside each tile of keys.
#pragma once

#include "mod.cuh"
#include "sm90/element_pair.cuh"

namespace sm90 {

// Threads read pairs of floats, which start at even entries. A vector by distance is there twice,
// the second time without its first entry, for pairs that start at odd ones: of a warp one half
// reads either, and the gap keeps these in different banks.
constexpr int kTileDistances = mod::kQueryTile + mod::kKeyTile;
constexpr int kTwinDistances = kTileDistances + (kTileDistances % 32 == 0 ? 16 : 0);
constexpr int kDistanceSliceBytes = 4 * (kTwinDistances + kTileDistances);
constexpr int kKeySliceBytes = 4 * mod::kKeyTile;
constexpr int kTermBytes =
    mod::kKeyValues * kKeySliceBytes + mod::kDistanceValues * kDistanceSliceBytes;
constexpr bool kHasTerms = kTermBytes != 0;

// One thread's: numbers for its columns of a tile, and for the distances of these from its two
// rows.
struct Terms {
    // Every eight keys.
    static constexpr int kPairs = mod::kKeyTile / 8;
    ElementPair<float> keys[mod::kKeyValues ? mod::kKeyValues : 1][kPairs];
    ElementPair<float> distances[mod::kDistanceValues ? mod::kDistanceValues : 1][kPairs + 1];

    // row: of the first of the thread's rows, in the tile; column: of its first.
    __device__ void load(unsigned from, int row, int column) {
#pragma unroll
        for (int i = 0; i < mod::kKeyValues; ++i) {
#pragma unroll
            for (int pair = 0; pair < kPairs; ++pair)
                keys[i][pair].load(from + 4 * (column + 8 * pair));
            from += kKeySliceBytes;
        }
        // A slice starts with the distance of the tile's first row from the key after its last. The
        // second of two columns is nearer.
        const int nearest = row - column - 1 + 8;
        const int start = nearest % 2 == 0 ? nearest : kTwinDistances + nearest - 1;
#pragma unroll
        for (int i = 0; i < mod::kDistanceValues; ++i) {
#pragma unroll
            for (int pair = 0; pair <= kPairs; ++pair)
                distances[i][pair].load(from + 4 * (start + 8 * pair));
            from += kDistanceSliceBytes;
        }
    }

    // Of the thread's j-th column, and of its row r.
    __device__ float key(int i, int j) const {
        return j % 2 == 0 ? keys[i][j / 2].first() : keys[i][j / 2].second();
    }
    __device__ float distance(int i, int r, int j) const {
        const ElementPair<float>& pair = distances[i][kPairs - 1 - j / 2 + r];
        return j % 2 == 0 ? pair.second() : pair.first();
    }
};

} // namespace sm90
