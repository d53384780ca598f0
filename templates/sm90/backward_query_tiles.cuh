// The tiles of queries of one head, for threads that count them and for those that find out which
// they are.
#pragma once

#include "common/select.h"
#include "common/tile_walk.cuh"
#include "sm90/backward_key_tile.cuh"
#include "sm90/mask_tile.cuh"

namespace sm90 {

// The i-th that a block visits, and from one to the next. In deterministic mode the last comes
// first: see backward_ordered_dq.cuh.
constexpr int kTileStep = mod::kDeterministic ? -1 : 1;
__device__ inline int tile_in_order(TileRange tiles, int i) {
    return mod::kDeterministic ? tiles.end - 1 - (i - tiles.begin) : i;
}

// Which tile of queries a stage holds, for threads that count: the one they expect, or the one that
// a block mask chose, as threads that find out by themselves announce it.
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

// Which tiles these are, for threads that find out by themselves.
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
