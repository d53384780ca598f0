// When the loop's next tile of keys is copied to shared memory: with two stages, while the tile
// before it is in use; with one stage, after all warps have finished with that tile.
#pragma once

#include "common/tile_walk.cuh"
#include "sm80/copy.cuh"

namespace sm80 {

// load(walk) starts the copies of the walk's tile, if it has one.
template <int kCount> struct Stages {
    static_assert(kCount == 2);
    template <typename Load> static __device__ void begin(const TileWalk& first, Load load) {
        load(first);
    }
    // Waits until the tile is in shared memory.
    template <typename Load>
    static __device__ void wait(const TileWalk&, const TileWalk& next, Load load) {
        wait_for_copies();
        __syncthreads(); // also: everyone has left the tile before
        load(next);
    }
};
template <> struct Stages<1> {
    template <typename Load> static __device__ void begin(const TileWalk&, Load) {}
    template <typename Load>
    static __device__ void wait(const TileWalk& tile, const TileWalk&, Load load) {
        __syncthreads();
        load(tile);
        wait_for_copies();
        __syncthreads();
    }
};

} // namespace sm80
