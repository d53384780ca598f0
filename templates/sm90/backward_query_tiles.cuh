// The tiles of queries of one head. Consumer warpgroups count them; threads of the producer
// warpgroup find out which they are.
#pragma once

#include "common/select.h"
#include "common/tile_walk.cuh"
#include "sm90/backward_key_tile.cuh"
#include "sm90/mask_tile.cuh"

namespace sm90 {

// Step from one tile to the next, and the i-th tile that a block visits. In deterministic mode the
// last comes first: see backward_ordered_dq.cuh.
constexpr int kTileStep = mod::kDeterministic ? -1 : 1;
__device__ inline int tile_in_order(TileRange tiles, int i) {
    return mod::kDeterministic ? tiles.end - 1 - (i - tiles.begin) : i;
}

// How consumers learn which tile of queries a stage holds: it is the one they expect, or the one
// that a block mask chose, as the producer announces it.
struct ExpectedTile {
    template <typename Walk> static __device__ void announce(const Shared&, int, const Walk&) {}
    template <typename Gradients>
    static __device__ int arrived(const Shared&, int, int expected, Gradients&) {
        return expected;
    }
};
struct ChosenTile {
    template <typename Walk>
    static __device__ void announce(const Shared& shared, int stage, const Walk& walk) {
        MaskTile{walk.tile(), walk.is_full()}.store(shared.mask_tile(stage));
    }
    template <typename Gradients>
    static __device__ int arrived(const Shared& shared, int stage, int, Gradients& gradients) {
        const MaskTile tile = MaskTile::load(shared.mask_tile(stage));
        gradients.use_block_mask(tile.is_full);
        return tile.index;
    }
};
using StageTile = Select<mod::Mask::kHasBlockMask, ChosenTile, ExpectedTile>;

// Finds out which tiles these are, for threads of the producer warpgroup.
class QueryTiles {
  public:
    __device__ QueryTiles(const AttentionArguments& attention, const HeadPlace& place,
                          const KeyTile& keys, TileRange tiles)
        : walk_(attention.block_mask, keys.mask_row(attention, place.h), tiles), tiles_(tiles) {}

    __device__ bool is_done() const { return walk_.is_done(); }
    __device__ bool is_full() const { return walk_.is_full(); }
    __device__ void advance() { walk_.advance(); }
    __device__ int tile() const {
        return mod::Mask::kHasBlockMask ? walk_.tile() : tile_in_order(tiles_, walk_.tile());
    }

  private:
    TileWalk walk_;
    TileRange tiles_;
};

} // namespace sm90
