// Adds sums over parts of diagonals to memory.
#pragma once

#include "sm90/gradients/distance_sums.cuh"
#include "sm90/gradients/sum.cuh"
#include "sm90/grid_digits.cuh"

namespace sm90 {

struct GridMemory {
    // Adds the sums of a form and four distances that follow each other. head: index over batch and
    // heads.
    static __device__ void add(const KernelArguments& attention, int head, int form, int distance,
                               const float (&sums)[4]) {
        const long long vector = static_cast<long long>(head) * kGridForms + form;
        put(distance_sums(attention) + vector * distance_count(attention) +
                padded(attention.kv_len) + distance,
            sums);
    }

  private:
    static __device__ void put(float* to, const float (&sums)[4]) {
        if (sums[0] != 0 || sums[1] != 0 || sums[2] != 0 || sums[3] != 0)
            accumulate_together<4>(to, sums);
    }
    static __device__ void put(exact::Sum* to, const float (&sums)[4]) {
#pragma unroll 1
        for (int i = 0; i < 4; ++i)
            if (sums[i] != 0) flexc_accumulate(to + i, sums[i]);
    }
};

// Visits the tiles of dS of all heads. make(place) returns a head's sums, which add the tiles one
// after the other. d_scores: address of the warp's part of the first stage, from first_row of a
// tile on.
template <typename MakeSums>
__device__ inline void sum_tiles(const KernelArguments& attention, const mod::Arguments& arguments,
                                 const KeyTile& keys, unsigned d_scores, int first_row,
                                 MakeSums make) {
    int stage = 0;
    visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
        auto sums = make(place);
#pragma unroll 1
        for (QueryTiles walk(attention, place, keys, tiles); !walk.is_done();
             walk.advance(), stage ^= 1) {
            __syncwarp();
            synchronize_d_scores();
            sums.add_tile(d_scores + stage * kDScoresBytes,
                          walk.tile() * mod::kQueryTile + first_row);
        }
        sums.flush();
    });
}

} // namespace sm90
