// What the producer says to consumers about a tile that a block mask chose.
#pragma once

#include "sm90/warpgroup.cuh"

namespace sm90 {

struct MaskTile {
    int index;
    bool is_full; // the block mask says that nothing is hidden

    __device__ void store(unsigned to) const {
        store_shared_word(to, static_cast<unsigned>(2 * index + is_full));
    }
    // Returns the same for the whole warp. The lane reads it that says when the warp has left the
    // stage.
    static __device__ MaskTile load(unsigned from) {
        unsigned word = 0;
        if (threadIdx.x % 32 == 0) word = load_shared_word(from);
        const int all = uniform(static_cast<int>(word));
        return {all >> 1, (all & 1) != 0};
    }
};

} // namespace sm90
