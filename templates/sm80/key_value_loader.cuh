// Loads the tiles of keys and values that a block's queries visit, one after the other.
#pragma once

#include "common/select.h"
#include "common/tile_walk.cuh"
#include "sm80/entry_scales.cuh"
#include "sm80/scattered_tile.cuh"
#include "sm80/tile.cuh"

namespace sm80 {

// Keys of one head that lie in rows with a stride.
template <int kThreads, typename T> struct StridedKeys : TileSource<kThreads, T> {
    __device__ StridedKeys(const AttentionArguments&, const TensorArgument& tensor,
                           const SequenceLength& length, int h_kv, int first_key)
        : TileSource<kThreads, T>(key_plane<typename T::Element>(tensor, length, h_kv), first_key) {
    }
};
template <int kThreads, typename T>
using KeySource = Select<mod::Layouts::Keys::kAreInOrder, StridedKeys<kThreads, T>,
                         ScatteredTileSource<kThreads, T>>;

template <int kThreads, typename KeyTile, typename ValueTile> class KeyValueLoader {
  public:
    __device__ KeyValueLoader(const AttentionArguments& attention, const SequenceLength& length,
                              int h_kv, int first_tile)
        : keys_(attention, attention.k, length, h_kv, first_tile * KeyTile::kRows),
          values_(attention, attention.v, length, h_kv, first_tile * ValueTile::kRows),
          scales_(attention, length, h_kv), length_(length) {}

    // Called with the tile that is started next. Loaders that look up rows ahead do so here.
    template <typename Walk> __device__ void look_up(const Walk&) {}

    // Starts to load the walk's tile. before: the tile that was started last, or the first one.
    // shared: has the place of each step's tiles.
    template <typename Shared, typename Walk>
    __device__ void start(const Shared& shared, const Walk& at, int before) {
        if (at.is_done()) return;
        const int distance = (at.tile() - before) * KeyTile::kRows;
        keys_.advance(distance);
        values_.advance(distance);
        const int rows_left = length_.keys() - at.tile() * KeyTile::kRows;
        keys_.load(shared.keys(at.step()), rows_left);
        values_.load(shared.values(at.step()), rows_left);
        scales_.load(shared, at.step(), at.tile() * KeyTile::kRows, rows_left);
    }

  private:
    KeySource<kThreads, KeyTile> keys_;
    KeySource<kThreads, ValueTile> values_;
    ScaleSource<kThreads> scales_;
    const SequenceLength length_;
};

} // namespace sm80
