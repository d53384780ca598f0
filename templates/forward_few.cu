// Attention, forward, of requests with few queries: keys and values are read once, at the speed of
// memory, for the queries of all heads that share them.
//
// A block computes tiles of 16 rows (packed_rows.cuh) over a part of the keys that they see. Where
// a request has one part, that is its result; else flexc_merge_parts makes one of several.
#include "mod.cuh"

#include "sm80/few_by_warps.cuh"
#include "sm80/few_merging.cuh"

using namespace sm80;

static_assert(few_bytes(kSizes, kMostTiles) <= mod::kSharedBytes);

extern "C" __global__ void __launch_bounds__(32 * kBlockWarps, 3)
    flexc_forward_few(const __grid_constant__ KernelArguments attention,
                      const __grid_constant__ mod::Arguments arguments) {
    let_next_start();
    const int group = attention.heads / attention.kv_heads;
    const int most_tiles = few_row_tiles(few_rows(attention.q_len, group));
    with_few_block(attention, arguments, [&](const FewBlock& block, int tiles) {
        attend_by_warps(block, tiles, most_tiles);
    });
}
