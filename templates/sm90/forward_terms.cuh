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
class Terms {
    static constexpr int kPairs = mod::kKeyTile / 8; // of columns

  public:
    static constexpr int kKeys = mod::kKeyValues ? mod::kKeyValues : 1;
    static constexpr int kDistances = mod::kDistanceValues ? mod::kDistanceValues : 1;

    // Where they are in shared memory, for the thread's first row and column in the tile.
    __device__ void find(unsigned slices, int row, int column) {
        keys_from_ = slices + 4 * column;
        // A slice starts with the distance of the tile's first row from the key after its last. The
        // second of two columns is nearer.
        const int nearest = row - column - 1 + 8;
        const int start = nearest % 2 == 0 ? nearest : kTwinDistances + nearest - 1;
        distances_from_ = slices + mod::kKeyValues * kKeySliceBytes + 4 * start;
    }
    // What eight keys need. From the first on: the first row is as far from these as the second is
    // from the next.
    __device__ void load(int pair) {
#pragma unroll
        for (int i = 0; i < mod::kKeyValues; ++i)
            keys_[i][pair].load(keys_from_ + i * kKeySliceBytes + 32 * pair);
#pragma unroll
        for (int i = 0; i < mod::kDistanceValues; ++i) {
            const unsigned from = distances_from_ + i * kDistanceSliceBytes;
            if (pair == 0) distances_[i][kPairs].load(from + 32 * kPairs);
            distances_[i][kPairs - 1 - pair].load(from + 32 * (kPairs - 1 - pair));
        }
    }

    // All of an element.
    struct Values {
        float of_key[kKeys], of_distance[kDistances];
    };
    __device__ Values of(int r, int j) const {
        Values values;
#pragma unroll
        for (int i = 0; i < mod::kKeyValues; ++i)
            values.of_key[i] = key(i, j);
#pragma unroll
        for (int i = 0; i < mod::kDistanceValues; ++i)
            values.of_distance[i] = distance(i, r, j);
        return values;
    }
    // Of the thread's j-th column, and of its row r.
    __device__ float key(int i, int j) const {
        return j % 2 == 0 ? keys_[i][j / 2].first() : keys_[i][j / 2].second();
    }
    __device__ float distance(int i, int r, int j) const {
        const ElementPair<float>& pair = distances_[i][kPairs - 1 - j / 2 + r];
        return j % 2 == 0 ? pair.second() : pair.first();
    }

  private:
    unsigned keys_from_, distances_from_;
    ElementPair<float> keys_[kKeys][kPairs], distances_[kDistances][kPairs + 1];
};

} // namespace sm90
