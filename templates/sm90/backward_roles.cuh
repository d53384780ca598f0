// What each warp of the producer warpgroup does until the block ends.
#pragma once

#include "sm90/backward_dq_writer.cuh"
#include "sm90/backward_producer.cuh"
#include "sm90/gradients/dense_bias.cuh"
#include "sm90/gradients/tile_warps.cuh"

namespace sm90 {

// Called by the producer warpgroup. Inlined, or sums over a 2-D key index would spill more.
__device__ __forceinline__ void serve_consumers(const KernelArguments& attention,
                                                const mod::Arguments& arguments,
                                                const BackwardTensorMaps& maps,
                                                const Shared& shared, const KeyTile& keys,
                                                int warp) {
    const bool first_lane = threadIdx.x % 32 == 0;
    if (warp == 0 && (first_lane || BesideQueries::kTakesWarp))
        load_queries(attention, arguments, maps, shared, keys);
    if (DqWriter::kHasThread && warp == 1 && first_lane)
        DqWriter::serve(attention, arguments, maps, shared, keys);
    if (mod::kPersistent && warp == 3 && first_lane)
        load_key_tiles(attention, arguments, maps, shared);
    if ((kWarpStagesRows || kWarpCopiesBiases) && warp == 2)
        stage_values(attention, arguments, shared, keys);
    if (BiasGradient::kHasWarps && warp % 2 == 1)
        BiasGradient::serve(attention, arguments, shared, keys, warp / 2);
    TileWarps::serve(attention, arguments, shared, keys, warp);
}

} // namespace sm90
