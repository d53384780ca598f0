// Which tile of queries or of keys a block has, and of which head. Tiles of one head are
// neighbours, so that what they read stays in L2, and the longest go first.
#pragma once

#include "common/select.h"
#include "common/tile_walk.cuh"

namespace sm80 {

struct BlockTile {
    int head, tile; // the head over all that the launch has
};

// longest(head, i): the tile of a head that is the i-th longest.
struct FirstTileFirst {
    template <typename Longest>
    static __device__ BlockTile of(int block, int heads, int tiles, Longest longest) {
        const int tile = block % tiles;
        return {block / tiles, tile};
    }
};
struct LastTileFirst {
    template <typename Longest>
    static __device__ BlockTile of(int block, int heads, int tiles, Longest longest) {
        const int tile = block % tiles;
        return {block / tiles, tiles - 1 - tile};
    }
};
struct LongestTileFirst {
    template <typename Longest>
    static __device__ BlockTile of(int block, int heads, int tiles, Longest longest) {
        const int head = block % heads;
        return {head, longest(head, block / heads)};
    }
};

// A band makes later queries see more keys, and earlier keys be seen by more queries.
using QueryTileOrder = Select<mod::kHasBlockMask, LongestTileFirst,
                              Select<mod::kHasBand, LastTileFirst, FirstTileFirst>>;
using KeyTileOrder = Select<mod::kHasBlockMask, LongestTileFirst, FirstTileFirst>;

// Of queries; heads are those of queries over the batch.
__device__ inline BlockTile query_tile_of(const AttentionArguments& attention, int block) {
    const int tiles = (attention.q_len + mod::kQueryTile - 1) / mod::kQueryTile;
    return QueryTileOrder::of(block, attention.batch * attention.heads, tiles,
                              [&](int head, int place) {
                                  return row_in_order(attention.block_mask, head / attention.heads,
                                                      head % attention.heads, place);
                              });
}

} // namespace sm80
