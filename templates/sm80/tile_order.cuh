// Which tile of queries or keys a block computes, and for which head. Tiles of one head are
// neighbours, so that what they read stays in L2, and the longest tiles start first.
#pragma once

#include "common/select.h"
#include "common/tile_walk.cuh"

namespace sm80 {

struct BlockTile {
    int head, tile; // the head over all that the launch has
};

// The tile of ragged rows at `place`, where each head has `tiles` tiles: see tile_of_request.
template <typename FirstRow>
__device__ inline BlockTile ragged_tile_of(const AttentionArguments& attention, int heads,
                                           int place, int tiles, int tile, FirstRow first_row) {
    const TileOfRequest found = tile_of_request(place % tiles, attention.batch, tile, first_row);
    return {found.request * heads + place / tiles, found.tile};
}

// Orders of tiles. longest(head, i) returns the i-th longest tile of a head.
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

// The block's tile for layouts other than dense if the mask has a block mask: the longest tiles of
// all requests first, each for all heads. tile: rows of a tile; length: the most rows of a request.
template <bool kRowsAreRagged, typename FirstRow>
__device__ inline BlockTile longest_tile_of(const AttentionArguments& attention, int heads,
                                            int block, int tile, int length, FirstRow first_row) {
    const int head = block % heads;
    const int place =
        row_in_order(attention.block_mask, 0, head * (attention.heads / heads), block / heads);
    if constexpr (kRowsAreRagged) {
        const TileOfRequest found = tile_of_request(place, attention.batch, tile, first_row);
        return {found.request * heads + head, found.tile};
    }
    const int tiles = (length + tile - 1) / tile;
    return {place / tiles * heads + head, place % tiles};
}

// With a band (such as causal), later queries see more keys, and earlier keys are seen by more
// queries.
constexpr bool kOrdersOneHead = mod::Mask::kHasBlockMask && mod::Layouts::kAreDense;
using QueryTileOrder = Select<kOrdersOneHead, LongestTileFirst,
                              Select<mod::Mask::kHasBand, LastTileFirst, FirstTileFirst>>;
using KeyTileOrder = Select<kOrdersOneHead, LongestTileFirst, FirstTileFirst>;

// The tile of queries of a block, in memory order. Heads are counted over the whole batch.
__device__ inline BlockTile tile_of_rows(const AttentionArguments& attention, int block, int tile) {
    if constexpr (mod::Layouts::kQueriesAreRagged)
        return ragged_tile_of(attention, attention.heads, block,
                              ragged_tiles(attention, attention.q_rows, tile), tile,
                              [&](int b) { return attention.sequences.of(b).q_row; });
    const int tiles = (attention.q_len + tile - 1) / tile;
    return {block / tiles, block % tiles};
}

// The tile of queries of a block, in the order in which tiles should start: the longest first.
__device__ inline BlockTile query_tile_of(const AttentionArguments& attention, int block) {
    if constexpr (mod::Mask::kHasBlockMask && !mod::Layouts::kAreDense)
        return longest_tile_of<mod::Layouts::kQueriesAreRagged>(
            attention, attention.heads, block, mod::kQueryTile, attention.q_len,
            [&](int b) { return attention.sequences.of(b).q_row; });
    if constexpr (mod::Layouts::kQueriesAreRagged) {
        const int tiles = ragged_tiles(attention, attention.q_rows, mod::kQueryTile);
        const int place = mod::Mask::kHasBand ? tiles * attention.heads - 1 - block : block;
        return tile_of_rows(attention, place, mod::kQueryTile);
    }
    const int tiles = (attention.q_len + mod::kQueryTile - 1) / mod::kQueryTile;
    return QueryTileOrder::of(block, attention.batch * attention.heads, tiles,
                              [&](int head, int place) {
                                  return row_in_order(attention.block_mask, head / attention.heads,
                                                      head % attention.heads, place);
                              });
}

// Returns whether a block has queries: with ragged queries, some blocks have no tile.
__device__ inline bool has_queries(const SequenceLength& length, int tile) {
    return !mod::Layouts::kQueriesAreRagged ||
           (tile >= 0 && tile * mod::kQueryTile < length.query_rows());
}

} // namespace sm80
