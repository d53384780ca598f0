// The tiles that a block visits, one after the other.
#pragma once

#include "common/block_mask.h"
#include "common/tile_range.cuh"

// The block mask of one (b, h), counted in rows before its own.
__device__ inline long long rows_before(const BlockMask& mask, int b, int h) {
    return (static_cast<long long>(b) * mask.batch_stride + h * mask.head_stride) * mask.row_count;
}

// The row of a block mask that has the tile-th of a batch entry's own tiles, of kTile rows each.
// first_row: of the entry, in a packed tensor.
template <int kTile, bool kIsRagged>
__device__ inline long long row_of_tile(const BlockMask& mask, int b, int h, long long first_row,
                                        int tile) {
    if constexpr (mod::Layouts::kAreDense) return rows_before(mask, b, h) + tile;
    const long long before = kIsRagged ? first_row / kTile : 0;
    return rows_before(mask, 0, h) + before + static_cast<long long>(b) * mask.batch_stride + tile;
}
// Of tiles of queries, and of keys, as this kernel has them.
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

// The row of tiles that is the place-th longest.
__device__ inline int row_in_order(const BlockMask& mask, int b, int h, int place) {
    return mask.order[rows_before(mask, b, h) + place];
}

// Tiles of a range, or where the mask has a block mask those that it says something is visible in.
class TileWalk {
  public:
    // row: of the block mask.
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
    // Tells the tiles that are visited one after the other apart.
    __device__ int step() const { return mod::Mask::kHasBlockMask ? step_ : tile_; }
    // Nothing is hidden in it by the mask. What ends with a sequence still is.
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
    // Where there is a block mask: the word that the tile is in, without what has been visited.
    int first_, step_ = -1;
    const TileWord* words_;
    TileWord word_;
};
