// Attention, forward: each block computes kQueryTile rows of one head's output.
//
// FlashAttention-2's loop over tiles of keys and values: scores = mod(scale * Q K^T); a
// running maximum and sum per row; output += exp(scores - maximum) V. Each warp has whole rows, so
// that only the four threads of a quad exchange values.
#include "mod.cuh"

#include "common/tile_walk.cuh"
#include "sm80/forward_output.cuh"
#include "sm80/forward_step.cuh"
#include "sm80/key_value_loader.cuh"
#include "sm80/tile_order.cuh"

using namespace sm80;

extern __shared__ __align__(128) unsigned char shared_memory[];

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_forward(const __grid_constant__ AttentionArguments attention,
                  const __grid_constant__ mod::Arguments arguments) {
    const BlockTile block = query_tile_of(attention, static_cast<int>(blockIdx.x));
    const SequenceLength length(attention, block.head / attention.heads);
    if (!has_queries(length, block.tile)) return;
    if (has_few_rows(length, attention.heads / attention.kv_heads)) return;
    const HeadPlace place(attention, arguments, block.head);
    const Surroundings around{attention, arguments, place, length};
    const int first_of_tile = block.tile * mod::kQueryTile;
    const int warp_row = static_cast<int>(threadIdx.x) / 32 * kWarpRows; // within the tile
    const int first_row = first_of_tile + warp_row, last_row = first_row + kWarpRows - 1;

    const Shared shared{shared_address(shared_memory)};
    TileWalk walk(
        attention.block_mask, row_of_queries(attention.block_mask, length, place.h, block.tile),
        visible_tiles(place, length, first_of_tile,
                      min(first_of_tile + mod::kQueryTile, length.queries()) - 1, mod::kKeyTile));
    KeyValueLoader<kThreads, KeyTile, ValueTile> loader(attention, length, place.h_kv, walk.tile());
    load_tile<kThreads>(shared.queries(), query_plane<Element>(attention.q, length, place.h),
                        first_of_tile, length.queries());
    clear_padding(shared);

    Rows rows;
    Softmax softmax;
    KeyValueScales scales(attention, length, place.h_kv);
    Output output = {};
    const bool scale_early = scales_early(attention);
    if (mod::Layouts::kAreDense || first_of_tile < length.queries())
        rows.find(around, first_row, lane_index());
    softmax.start(scale_early ? 1 : attention.scale);
    const ForwardStep step{around, softmax, scales, output, scale_early};

    loader.start(shared, walk, walk.tile());
    scales.apply_to_queries(shared.queries(), warp_row);
    while (!walk.is_done()) {
        TileWalk next = walk;
        next.advance();
        wait_for_copies();
        __syncthreads(); // this tile is here, and everyone has left the one before
        loader.start(shared, next, walk.tile());

        step.attend<1>(
            rows, shared.queries(), warp_row, walk.step(),
            [&](int) { return TileHere{shared, walk.tile() * mod::kKeyTile}; },
            [&] { rows.find_positions(length, first_row, lane_again()); },
            [&](int, int first_kv, int last_kv) {
                return Mask::shows_all(place, walk.is_full(), first_row, last_row, first_kv,
                                       last_kv);
            });
        walk = next;
    }
    wait_for_copies();
    __syncthreads(); // the tiles make room for the output
    store_output(attention, arguments, softmax, scales, output, shared);
}
