// When tiles that pass by start on their way to shared memory: with two stages while the one before
// is worked on, with one when everyone has left that.
#pragma once

#include "common/tile_walk.cuh"
#include "sm80/copy.cuh"

namespace sm80 {

// load(walk) starts a tile, if there is one.
template <int kCount> struct Stages {
    static_assert(kCount == 2);
    template <typename Load> static __device__ void begin(const TileWalk& first, Load load) {
        load(first);
    }
    // Until the tile is there.
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
