// Attention, backward: each block computes dq of kQueryTile queries of one head, in a fixed order,
// for backward passes that must not use atomics.
//
// Queries and d_out stay in shared memory; the block loops over tiles of keys and values. dS
// becomes an operand in the registers that hold it, as P does in the forward kernel.
#include "mod.cuh"

#include "sm80/backward_output.cuh"
#include "sm80/backward_scores.cuh"
#include "sm80/key_value_loader.cuh"
#include "sm80/stages.cuh"
#include "sm80/tile_order.cuh"

using namespace sm80;

namespace {

// Each warp owns whole rows.
using Scores = WarpResult<mod::kQueryTile, mod::kKeyTile, mod::kWarps, true>;
using QueryGradient = WarpResult<mod::kQueryTile, mod::kHeadDim, mod::kWarps, true>;
using QueryGradientTile = Tile<float, mod::kQueryTile, mod::kHeadDim>;

constexpr BackwardQueryLayout kLayout = backward_query_layout(kSizes);
static_assert(kLayout.bytes <= mod::kSharedBytes);
extern __shared__ __align__(128) unsigned char shared_memory[];

struct Shared {
    unsigned base;
    __device__ QueryTile queries() const { return {base}; }
    __device__ DOutTile d_out() const { return {base + kLayout.d_out}; }
    __device__ unsigned row_statistics() const { return base + kLayout.row_statistics; }
    __device__ KeyTile keys(int step) const {
        return {base + kLayout.stages + step % mod::kStages * kLayout.stage_bytes};
    }
    __device__ ValueTile values(int step) const { return {keys(step).base + kLayout.values}; }
};

__device__ void load_queries(Shared shared, const KernelArguments& attention,
                             const SequenceLength& length, int h, int first_q) {
    const Plane<Element> q = query_plane<Element>(attention.q, length, h),
                         d_out = query_plane<Element>(attention.d_out, length, h);
    load_tile<kThreads>(shared.queries(), q, first_q, length.queries());
    load_tile<kThreads>(shared.d_out(), d_out, first_q, length.queries());
    load_row_statistics<mod::kQueryTile>(shared.row_statistics(), attention, length, h, first_q);
    clear_padding<kThreads>(shared.queries());
    clear_padding<kThreads>(shared.d_out());
    for (int i = 0; i < mod::kStages; ++i) {
        clear_padding<kThreads>(shared.keys(i));
        clear_padding<kThreads>(shared.values(i));
    }
}

// dq += dS K
__device__ void add_keys(QueryGradient& dq, const Scores& d_scores, KeyTile key) {
    accumulate<Element, mod::kKeyTile, true>(
        dq,
        [&](int fragment, int k) {
            return operand_from_accumulators<Element>(d_scores.values[fragment],
                                                      k / kStepK<Element>);
        },
        [&](OperandB<Element>(&b)[2], int unit, int k) {
            load_b_transposed(b, key, 16 * unit, k);
        });
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flexc_backward_query(const __grid_constant__ KernelArguments attention,
                         const __grid_constant__ mod::Arguments arguments) {
    const BlockTile block = query_tile_of(attention, static_cast<int>(blockIdx.x));
    const SequenceLength length(attention, block.head / attention.heads);
    if (!has_queries(length, block.tile)) return;
    const HeadPlace place(attention, arguments, block.head);
    const Surroundings around{attention, arguments, place, length};
    const int first_q = block.tile * mod::kQueryTile;
    const int last_q = min(first_q + mod::kQueryTile, length.queries()) - 1;

    TileWalk walk(attention.block_mask,
                  row_of_queries(attention.block_mask, length, place.h, block.tile),
                  visible_tiles(place, length, first_q, last_q, mod::kKeyTile));
    KeyValueLoader<kThreads, KeyTile, ValueTile> loader(attention, length, place.h_kv, walk.tile());
    const Shared shared{shared_address(shared_memory)};
    int loaded = walk.tile(); // or about to be
    const auto load = [&](const TileWalk& at) {
        loader.start(shared, at, loaded);
        loaded = at.tile();
    };

    load_queries(shared, attention, length, place.h, first_q);
    Stages<mod::kStages>::begin(walk, load);
    QueryGradient dq;
    dq.clear();
    mod::GradientSums sums{};

    for (TileWalk next = walk; !walk.is_done(); walk = next) {
        next.advance();
        Stages<mod::kStages>::wait(walk, next, load);
        const int step = walk.step();
        Scores scores, d_scores;
        LaterGradients<Scores> later;
        scores.clear();
        d_scores.clear();
        mma_rows(scores, shared.queries(), shared.keys(step));
        mma_rows(d_scores, shared.d_out(), shared.values(step));
        differentiate_tile(scores, d_scores, around,
                           {first_q, walk.tile() * mod::kKeyTile, shared.row_statistics(),
                            4 * mod::kQueryTile, walk.is_full()},
                           sums, later);
        add_keys(dq, d_scores, shared.keys(step));
    }
    mod::flush_gradients(arguments, place.launch, place.head, place.b, place.h, place.h_kv, sums);

    wait_for_copies(); // of the first tiles too, where no loop did
    __syncthreads();   // everyone has left the last tile
    store_gradient<QueryGradientTile, kThreads>(
        shared.base, dq, query_gradient<Element>(attention.dq, attention.dq_flags, length, place.h),
        first_q, length.query_rows(), attention.scale);
}
