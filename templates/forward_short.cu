// Attention, forward, for many short sequences: a block has all queries and keys of a sequence, and
// computes one after another. This is memory-bound, so blocks are small and many are resident on a
// multiprocessor.
//
// What the score mod computes from h, q and kv alone is computed once for all batch entries of a
// head, which a block computes one after another.
#include "mod.cuh"

#include "common/tile_range.cuh"
#include "sm80/forward_mma.cuh"
#include "sm80/forward_output.cuh"
#include "sm80/hidden_scores.cuh"
#include "sm80/key_value_scales.cuh"
#include "sm80/score_mod.cuh"
#include "sm80/sequences_of_block.cuh"
#include "sm80/shared_values.cuh"
#include "sm80/softmax.cuh"

using namespace sm80;

namespace {

extern __shared__ __align__(128) unsigned char shared_memory[];

static_assert(mod::Layouts::kAreDense && !mod::Mask::kHasBlockMask);
static_assert(mod::kStages * mod::kKeyTile >= mod::kQueryTile); // all keys at once
static_assert(kHasOneKeyTile || !mod::kHasSharedValue);
static_assert(kLayout.bytes + SharedValues::kBytes <= mod::kSharedBytes);

// The keys and values of a whole sequence.
struct SharedTiles : Shared {
    using AllKeys = Tile<Element, mod::kStages * mod::kKeyTile, mod::kHeadDim>;
    using AllValues = Tile<Element, mod::kStages * mod::kKeyTile, mod::kHeadDimV>;
    static_assert(AllKeys::kBytes + AllValues::kBytes == mod::kStages * kLayout.stage_bytes);

    __device__ AllKeys all_keys() const { return {stages}; }
    __device__ AllValues all_values() const { return {stages + AllKeys::kBytes}; }
    __device__ KeyTile keys(int tile) const { return {all_keys().at(tile * mod::kKeyTile, 0)}; }
    __device__ ValueTile values(int tile) const {
        return {all_values().at(tile * mod::kKeyTile, 0)};
    }
};

__device__ void load(const SharedTiles& shared, const AttentionArguments& attention,
                     const SequenceLength& length, int h, int h_kv) {
    load_tile<kThreads>(shared.queries(), query_plane<Element>(attention.q, length, h), 0,
                        length.queries());
    load_tile<kThreads>(shared.all_keys(), key_plane<Element>(attention.k, length, h_kv), 0,
                        length.keys());
    load_tile<kThreads>(shared.all_values(), key_plane<Element>(attention.v, length, h_kv), 0,
                        length.keys());
    clear_padding<kThreads>(shared.queries());
    clear_padding<kThreads>(shared.all_keys());
    clear_padding<kThreads>(shared.all_values());
}

// Computes one sequence. All threads have finished the sequence before.
__device__ void attend(const AttentionArguments& attention, const mod::Arguments& arguments,
                       SharedValues& values, int b, int h) {
    const SharedTiles shared{{computed_again(shared_address(shared_memory))}};
    const SequenceLength length(attention, b);
    const HeadPlace place(attention, arguments, b, h, h / (attention.heads / attention.kv_heads));
    const Surroundings around{attention, arguments, place, length};
    const int first_row = thread_again() / 32 * kWarpRows;
    load(shared, attention, length, h, place.h_kv);

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
    const int last_row = first_row + kWarpRows - 1;
    const auto meet = [&](int tile) {
        const int first_kv = tile * mod::kKeyTile, last_kv = first_kv + mod::kKeyTile - 1;
        Scores of_tiles[1];
        Scores& scores = of_tiles[0];
        mma_qk(scores, shared.queries(), first_row, shared.keys(tile));
        if (scale_early)
            apply_score_mod(scores, attention.scale, around, RowsWithValues{rows, values},
                            first_kv);
        if (length.keys() <= last_kv ||
            !Mask::shows_all(place, false, first_row, last_row, first_kv, last_kv))
            hide_scores(scores, around, rows, first_kv);
        softmax.update(of_tiles, output);
        mma_pv(output, scores, shared.values(tile));
    };
    const TileRange seen =
        kHasOneKeyTile ? visible_tiles(place, length, 0, length.queries() - 1, mod::kKeyTile)
                       : visible_tiles(place, length, min(first_row, length.queries() - 1),
                                       min(last_row, length.queries() - 1), mod::kKeyTile);
    if constexpr (kHasOneKeyTile) {
        if (seen.end > 0) meet(0);
    } else {
#pragma unroll 1
        for (int tile = seen.begin; tile < seen.end; ++tile)
            meet(tile);
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
