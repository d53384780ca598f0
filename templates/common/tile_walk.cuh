// The tiles that a block visits, one after the other.
#pragma once

#include "common/place.cuh"
#include "common/tile_map.h"

// The map of one (b, h), counted in rows before its own.
__device__ inline long long rows_before(const TileMap& map, int b, int h) {
    return (static_cast<long long>(b) * map.batch_stride + h * map.head_stride) * map.row_count;
}

// The row of tiles that is the place-th longest.
__device__ inline int row_in_order(const TileMap& map, int b, int h, int place) {
    return map.order[rows_before(map, b, h) + place];
}

// Tiles of a range, or where the mask has a map those that it says something is visible in.
class TileWalk {
  public:
    __device__ TileWalk(const TileMap& map, int b, int h, int row, TileRange range)
        : tile_(range.begin), end_(range.end) {
        if constexpr (mod::kHasMap) {
            const long long at = rows_before(map, b, h) + row;
            const TileRow found = map.rows[at];
            end_ = found.end;
            first_ = found.begin / 32 * 32;
            words_ = map.words + at * map.word_count + first_ / 32;
            word_ = found.count == 0 ? TileWord{0, 0} : *words_;
            advance();
        }
    }

    __device__ bool is_done() const { return tile_ >= end_; }
    __device__ int tile() const { return tile_; }
    // Tells the tiles that are visited one after the other apart.
    __device__ int step() const { return mod::kHasMap ? step_ : tile_; }
    // Nothing is hidden in it by the mask. What ends with a sequence still is.
    __device__ bool is_full() const {
        return mod::kHasMap && (word_.full >> (tile_ - first_) & 1) != 0;
    }

    __device__ void advance() {
        if constexpr (mod::kHasMap) {
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
    // Where there is a map: the word that the tile is in, without what has been visited.
    int first_, step_ = -1;
    const TileWord* words_;
    TileWord word_;
};
