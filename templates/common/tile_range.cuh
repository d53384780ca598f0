// Ranges of tiles, and the tiles that some queries or keys may see.
#pragma once

#include "common/place.cuh"

// Tiles [begin, end) of `tile` positions each.
struct TileRange {
    int begin, end;
};
// Tiles that hold positions first ... last, clipped to [0, length).
__device__ inline TileRange tiles_between(int first, int last, int length, int tile) {
    first = first < 0 ? 0 : first;
    last = last >= length ? length - 1 : last;
    if (first > last) return {0, 0};
    return {first / tile, last / tile + 1};
}
__device__ inline TileRange tiles_between(Positions positions, int length, int tile) {
    return tiles_between(positions.first, positions.last, length, tile);
}

// Tiles of `tile` keys that queries first_q ... last_q may see. Empty if a request has no such
// queries; the program must not be evaluated for them.
__device__ inline TileRange visible_tiles(const HeadPlace& place, const SequenceLength& length,
                                          int first_q, int last_q, int tile) {
    if (!mod::Layouts::kAreDense && first_q > last_q) return {0, 0};
    return tiles_between(place.keys_of(first_q, last_q), length.keys(), tile);
}
// Tiles of `tile` queries that may see keys first_kv ... last_kv; empty likewise.
template <typename Length>
__device__ inline TileRange seeing_tiles(const HeadPlace& place, const Length& length, int first_kv,
                                         int last_kv, int tile) {
    if (!mod::Layouts::kAreDense && first_kv > last_kv) return {0, 0};
    return tiles_between(place.queries_of(first_kv, last_kv), length.queries(), tile);
}
