// Attention, forward, for requests or dense batch entries with few queries: keys and values are
// loaded once for the queries of all heads that share them, at memory bandwidth.
//
// Each block computes tiles of 16 packed rows (packed_rows.cuh) over a part of their keys. If a
// request has one part, its result is final; otherwise flexc_merge_parts merges the parts.
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
