// The part of a tile of dS, or of a gradient's elements, that one of the two warps sums, for all of
// a block's tiles.
#pragma once

#include "sm90/backward_heads.cuh"
#include "sm90/backward_query_tiles.cuh"

namespace sm90 {

// Has 64 keys and all of the tile's queries, or half of them where there are no more keys. dS of
// hidden elements, and of those past the end, is zero.
struct WarpPanel {
    static constexpr int kRows = kSharesKeys ? mod::kQueryTile / 2 : mod::kQueryTile;
    static constexpr int kKeys = kPanelColumns;

    unsigned d_scores; // from the first row on
    int first_query, first_key;

    __device__ WarpPanel(Shared shared, int stage, int tile_query, int tile_key, int warp)
        : d_scores(shared.base + kSummedTile + stage * kDScoresBytes +
                   warp * (kSharesKeys ? kRows * kRowBytes : kQueryPanel)),
          first_query(tile_query + (kSharesKeys ? warp * kRows : 0)),
          first_key(tile_key + (kSharesKeys ? 0 : warp * kPanelColumns)) {}

    static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
};

// Called by one warp: calls visit(place, panel, tiles of the head, tile) when dS of a tile is
// there, and visit_end(place, tiles) after the tiles of a head.
template <typename Visit, typename VisitEnd>
__device__ inline void
visit_panels(const KernelArguments& attention, const mod::Arguments& arguments, Shared shared,
             const KeyTile& keys, int warp, Visit visit, VisitEnd visit_end) {
    int stage = 0;
    visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
#pragma unroll 1
        for (QueryTiles walk(attention, place, keys, tiles); !walk.is_done();
             walk.advance(), stage ^= 1) {
            __syncwarp();
            synchronize_d_scores();
            visit(place,
                  WarpPanel(shared, stage, walk.tile() * mod::kQueryTile, keys.first_kv, warp),
                  tiles, walk.tile());
        }
        visit_end(place, tiles);
    });
}

} // namespace sm90
