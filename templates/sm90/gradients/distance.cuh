// Two warps of the producer warpgroup sum dS, or elements of a gradient, over distances q - kv.
#pragma once

#include "sm90/backward_heads.cuh"
#include "sm90/backward_query_tiles.cuh"
#include "sm90/gradients/diagonal_sums.cuh"

namespace sm90 {

__device__ inline void sum_distances(const KernelArguments& attention,
                                     const mod::Arguments& arguments, Shared shared,
                                     const KeyTile& keys, bool is_upper) {
    int stage = 0;
    visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
        const long long head = place.b * attention.heads + place.h;
        DistanceSum* const to =
            distance_sums(attention) + padded(attention.kv_len) + head * distance_count(attention);
        Strip strip(attention, to, is_upper);
        int last = 0;
#pragma unroll 1
        for (QueryTiles walk(attention, place, keys, tiles); !walk.is_done();
             walk.advance(), stage ^= 1) {
            __syncwarp(); // the lanes have summed different distances
            synchronize_d_scores();
            if (mod::Mask::kHasBlockMask && walk.tile() != last + 1) strip.flush();
            last = walk.tile();
            strip.add_tile(shared.base + kSummedTile + stage * kDScoresBytes,
                           walk.tile() * mod::kQueryTile - keys.first_kv);
        }
        strip.flush();
    });
}

} // namespace sm90
