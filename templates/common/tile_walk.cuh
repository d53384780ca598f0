// Iterates over the tiles that a block visits.
#pragma once

#include "common/block_mask.h"
#include "common/tile_range.cuh"

// Number of rows ahead of the block mask of one (b, h).
__device__ inline long long rows_before(const BlockMask& mask, int b, int h) {
    return (static_cast<long long>(b) * mask.batch_stride + h * mask.head_stride) * mask.row_count;
}

// Row of the block mask for a batch entry's tile-th tile, of kTile rows each. first_row: the
// entry's first row in a packed tensor.
template <int kTile, bool kIsRagged>
__device__ inline long long row_of_tile(const BlockMask& mask, int b, int h, long long first_row,
                                        int tile) {
    if constexpr (mod::Layouts::kAreDense) return rows_before(mask, b, h) + tile;
    const long long before = kIsRagged ? first_row / kTile : 0;
    return rows_before(mask, 0, h) + before + static_cast<long long>(b) * mask.batch_stride + tile;
}
// Rows of the block mask for this kernel's tiles of queries, and of keys.
template <typename Length>
__device__ inline long long row_of_queries(const BlockMask& mask, const Length& length, int h,
                                           int tile) {
    return row_of_tile<mod::kQueryTile, mod::Layouts::kQueriesAreRagged>(
        mask, length.b(), h, length.first_query_row(), tile);
}
template <typename Length>
__device__ inline long long row_of_keys(const BlockMask& mask, const Length& length, int h,
                                        int tile) {
    return row_of_tile<mod::kKeyTile, mod::Layouts::kKeysAreRagged>(mask, length.b(), h,
                                                                    length.first_key_row(), tile);
}

// Row of the block mask that is the place-th longest.
__device__ inline int row_in_order(const BlockMask& mask, int b, int h, int place) {
    return mask.order[rows_before(mask, b, h) + place];
}

// Iterates over the tiles of a range or, if the mask has a block mask, over those in which
// something is visible.
class TileWalk {
  public:
    // row: of the block mask, if there is one.
    __device__ TileWalk(const BlockMask& mask, long long row, TileRange range)
        : tile_(range.begin), end_(range.end) {
        if constexpr (mod::Mask::kHasBlockMask) {
            const TileRow found = mask.rows[row];
            end_ = found.end;
            first_ = found.begin / 32 * 32;
            words_ = mask.words + row * mask.word_count + first_ / 32;
            word_ = found.count == 0 ? TileWord{0, 0} : *words_;
            advance();
        }
    }

    __device__ bool is_done() const { return tile_ >= end_; }
    __device__ int tile() const { return tile_; }
    // A number that differs from one visited tile to the next, by which stages alternate.
    __device__ int step() const { return mod::Mask::kHasBlockMask ? step_ : tile_; }
    // Whether the mask hides nothing in the tile. Positions past the end of a sequence are hidden
    // even so.
    __device__ bool is_full() const {
        return mod::Mask::kHasBlockMask && (word_.full >> (tile_ - first_) & 1) != 0;
    }

    __device__ void advance() {
        if constexpr (mod::Mask::kHasBlockMask) {
            ++step_;
            while (word_.visible == 0) {
                first_ += 32;
                if (first_ >= end_) {
                    tile_ = end_;
                    return;
                }
                word_ = *++words_;
            }
            tile_ = first_ + __ffs(word_.visible) - 1;
            word_.visible &= word_.visible - 1;
        } else {
            ++tile_;
        }
    }

  private:
    int tile_, end_;
    // With a block mask: the word that holds the tile, without the bits of tiles visited so far.
    int first_, step_ = -1;
    const TileWord* words_;
    TileWord word_;
};
