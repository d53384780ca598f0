// Attention, forward, for many short sequences: a tile holds a whole sequence, and a block computes
// one after another. This is memory-bound, so blocks are small and many are resident on a
// multiprocessor.
//
// What the score mod computes from h, q and kv alone is computed once for all batch entries of a
// head, which a block computes one after another.
#include "mod.cuh"

#include "common/tile_walk.cuh"
#include "sm80/forward_mma.cuh"
#include "sm80/forward_output.cuh"
#include "sm80/hidden_scores.cuh"
#include "sm80/key_value_loader.cuh"
#include "sm80/key_value_scales.cuh"
#include "sm80/score_mod.cuh"
#include "sm80/sequences_of_block.cuh"
#include "sm80/shared_values.cuh"
#include "sm80/softmax.cuh"

using namespace sm80;

namespace {

extern __shared__ __align__(128) unsigned char shared_memory[];

static_assert(kHasOneKeyTile && mod::Layouts::kAreDense && !mod::Mask::kHasBlockMask);
static_assert(kLayout.bytes + SharedValues::kBytes <= mod::kSharedBytes);

// Computes one sequence. All threads have finished the sequence before.
__device__ void attend(const AttentionArguments& attention, const mod::Arguments& arguments,
                       SharedValues& values, int b, int h) {
    const Shared shared{computed_again(shared_address(shared_memory))};
    const SequenceLength length(attention, b);
    const HeadPlace place(attention, arguments, b, h, h / (attention.heads / attention.kv_heads));
    const Surroundings around{attention, arguments, place, length};
    const int first_row = thread_again() / 32 * kWarpRows;
    TileWalk walk(attention.block_mask, 0,
                  visible_tiles(place, length, 0, length.queries() - 1, mod::kKeyTile));
    load_tile<kThreads>(shared.queries(), query_plane<Element>(attention.q, length, h), 0,
                        length.queries());
    KeyValueLoader<kThreads, KeyTile, ValueTile>(attention, length, place.h_kv, 0)
        .start(shared, walk, 0);
    clear_padding(shared);

    Rows rows;
    Softmax softmax;
    const KeyValueScales scales(attention, length, place.h_kv);
    Output output = {};
    const bool scale_early = scales_early(attention);
    rows.find(around, first_row, lane_index());
    softmax.start(scale_early ? 1 : attention.scale);
    values.find(around, rows);
    wait_for_copies();
    __syncthreads();
    if (!walk.is_done()) {
        Scores of_tiles[1];
        Scores& scores = of_tiles[0];
        mma_qk(scores, shared.queries(), first_row, shared.keys(0));
        if (scale_early)
            apply_score_mod(scores, attention.scale, around, RowsWithValues{rows, values}, 0);
        if (length.keys() < mod::kKeyTile ||
            !Mask::shows_all(place, false, first_row, first_row + kWarpRows - 1, 0,
                             mod::kKeyTile - 1))
            hide_scores(scores, around, rows, 0);
        softmax.update(of_tiles, output);
        mma_pv(output, scores, shared.values(0));
    }
    __syncthreads(); // the tiles make room for the output
    store_output(attention, arguments, length, h, first_row, softmax, scales, output, shared);
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, mod::kBlocksAtOnce)
    flexc_forward_short(const __grid_constant__ AttentionArguments attention,
                        const __grid_constant__ mod::Arguments arguments) {
    SharedValues values(shared_address(shared_memory) + kLayout.bytes);
    const SequenceRange sequences =
        sequences_of_block(static_cast<long long>(attention.batch) * attention.heads);
#pragma unroll 1
    for (int i = sequences.first; i < sequences.end; ++i) {
        if constexpr (mod::kHasSharedValue)
            attend(attention, arguments, values, i % attention.batch, i / attention.batch);
        else
            attend(attention, arguments, values, i / attention.heads, i % attention.heads);
        __syncthreads(); // the output has left
    }
}
