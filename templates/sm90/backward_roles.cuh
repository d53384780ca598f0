// What the warps beside those that multiply do, each for as long as the block is there.
#pragma once

#include "sm90/backward_distances.cuh"
#include "sm90/backward_grid_products.cuh"
#include "sm90/backward_layout.cuh"
#include "sm90/backward_matrix.cuh"
#include "sm90/backward_pieces.cuh"
#include "sm90/backward_producer.cuh"
#include "sm90/backward_turns.cuh"

namespace sm90 {

// Inlined, or sums over a grid of keys would spill more.
__device__ __forceinline__ void serve_consumers(const AttentionArguments& attention,
                                                const mod::Arguments& arguments,
                                                const BackwardMaps& maps, const Shared& shared,
                                                const KeyTile& keys, int warp) {
    const bool first_lane = threadIdx.x % 32 == 0;
    if (warp == 0 && (first_lane || kStagesGrid))
        load_queries(attention, arguments, maps, shared, keys);
    if (!kAddsMatrices && warp == 1 && first_lane) {
        if constexpr (mod::kDeterministic)
            add_pieces_in_turn(attention, arguments, maps, shared, keys);
        else
            add_pieces(attention, arguments, maps, shared, keys);
    }
    if constexpr (mod::kBlocksStay)
        if (warp == 3 && first_lane) load_key_tiles(attention, arguments, maps, shared);
    if constexpr (kStagesRows || kCopiesBiases)
        if (warp == 2) stage_values(attention, arguments, shared, keys);
    if constexpr (kAddsMatrices)
        if (warp % 2 == 1) add_matrices(attention, arguments, shared, keys, warp / 2);
    if constexpr (mod::kSumsDistances)
        if (warp >= 2) sum_distances(attention, arguments, shared, keys, warp == 3);
    if constexpr (mod::kSumsQuotients || mod::kSumsRemainders)
        if (warp >= 2) sum_grid(attention, arguments, shared, keys, warp - 2);
}

} // namespace sm90
