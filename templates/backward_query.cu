// Attention, backward: one block computes dq for kQueryTile queries of one head, always in the same
// order, for backward passes that must not add atomically.
//
// Queries and d_out stay on chip, keys and values pass by; dS turns from accumulators into operands
// without leaving its warp, as P does in the forward kernel.
#include "mod.cuh"

#include "common/tile_walk.cuh"
#include "sm80/backward_output.cuh"
#include "sm80/backward_scores.cuh"

using namespace sm80;
using mod::Element;

namespace {

constexpr int kThreads = 32 * mod::kWarps;

using KeyTile = Tile<Element, mod::kKeyTile, mod::kHeadDim>;
using ValueTile = Tile<Element, mod::kKeyTile, mod::kHeadDimV>;
using QueryTile = Tile<Element, mod::kQueryTile, mod::kHeadDim>;
using DOutTile = Tile<Element, mod::kQueryTile, mod::kHeadDimV>;

// Each warp owns whole rows.
using Scores = WarpResult<mod::kQueryTile, mod::kKeyTile, mod::kWarps, true>;
using QueryGradient = WarpResult<mod::kQueryTile, mod::kHeadDim, mod::kWarps, true>;

// Shared memory: queries, d_out, lse and delta, then the stages of keys and values.
constexpr int kRowSumBytes = 2 * 4 * mod::kQueryTile;
constexpr int kFirstStage = QueryTile::kBytes + DOutTile::kBytes + kRowSumBytes;
constexpr int kStageBytes = KeyTile::kBytes + ValueTile::kBytes;
using QueryGradientTile = Tile<float, mod::kQueryTile, mod::kHeadDim>;
static_assert(kFirstStage + mod::kStages * kStageBytes <= mod::kSharedBytes);
static_assert(QueryGradientTile::kBytes <= mod::kSharedBytes);
static_assert(mod::kStages == 1 || mod::kStages == 2);

extern __shared__ __align__(128) unsigned char shared_memory[];

struct Shared {
    unsigned base;
    __device__ QueryTile query() const { return {base}; }
    __device__ DOutTile d_out() const { return {base + QueryTile::kBytes}; }
    __device__ unsigned row_sums() const { return base + QueryTile::kBytes + DOutTile::kBytes; }
    __device__ KeyTile key(int step) const {
        return {base + kFirstStage + step % mod::kStages * kStageBytes};
    }
    __device__ ValueTile value(int step) const { return {key(step).base + KeyTile::kBytes}; }
};

__device__ void load_queries(Shared shared, const KernelArguments& attention,
                             const HeadPlace& place, int first_q) {
    const Plane<Element> q(attention.q, place.b, place.h), d_out(attention.d_out, place.b, place.h);
    load_tile<kThreads>(shared.query(), q, q.aligned_to(kCopyBytes<Element, mod::kHeadDim>),
                        first_q, attention.q_len);
    load_tile<kThreads>(shared.d_out(), d_out,
                        d_out.aligned_to(kCopyBytes<Element, mod::kHeadDimV>), first_q,
                        attention.q_len);
    load_row_sums<kThreads, mod::kQueryTile>(shared.row_sums(), attention, place.b, place.h,
                                             first_q);
    clear_padding<kThreads>(shared.query());
    clear_padding<kThreads>(shared.d_out());
    for (int i = 0; i < mod::kStages; ++i) {
        clear_padding<kThreads>(shared.key(i));
        clear_padding<kThreads>(shared.value(i));
    }
}

// dq += dS K
__device__ void add_keys(QueryGradient& dq, const Scores& d_scores, KeyTile key) {
    accumulate<Element, mod::kKeyTile, true>(
        dq,
        [&](int slab, int k) {
            return operand_from_accumulators<Element>(d_scores.values[slab], k / kStepK<Element>);
        },
        [&](OperandB<Element>(&b)[2], int unit, int k) {
            load_b_transposed(b, key, 16 * unit, k);
        });
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flexc_backward_query(const __grid_constant__ sm80::KernelArguments attention,
                         const __grid_constant__ mod::Arguments arguments) {
    // Tiles of one head are neighbours, so that its keys and values stay in L2; where a band makes
    // later rows see more, they go first, and where there is a block mask, the longest.
    const int block = static_cast<int>(blockIdx.x);
    const int query_tiles = (attention.q_len + mod::kQueryTile - 1) / mod::kQueryTile;
    const int heads = attention.batch * attention.heads;
    const HeadPlace place(attention, arguments,
                          mod::kHasBlockMask ? block % heads : block / query_tiles);
    const int query_tile = mod::kHasBlockMask
                               ? row_in_order(attention.block_mask, place.b, place.h, block / heads)
                           : mod::kHasBand ? query_tiles - 1 - block % query_tiles
                                           : block % query_tiles;
    const int first_q = query_tile * mod::kQueryTile;
    const int last_q = min(first_q + mod::kQueryTile, attention.q_len) - 1;

    TileWalk walk(attention.block_mask, place.b, place.h, query_tile,
                  tiles_between(place.keys_of(first_q, last_q), attention.kv_len, mod::kKeyTile));
    TileSource<kThreads, KeyTile> keys(Plane<Element>(attention.k, place.b, place.h_kv),
                                       walk.tile() * mod::kKeyTile);
    TileSource<kThreads, ValueTile> values(Plane<Element>(attention.v, place.b, place.h_kv),
                                           walk.tile() * mod::kKeyTile);
    const Shared shared{shared_address(shared_memory)};
    const auto start_loading = [&](const TileWalk& at, int distance) {
        if (at.is_done()) return;
        keys.advance(distance * mod::kKeyTile);
        values.advance(distance * mod::kKeyTile);
        keys.load(shared.key(at.step()), attention.kv_len - at.tile() * mod::kKeyTile);
        values.load(shared.value(at.step()), attention.kv_len - at.tile() * mod::kKeyTile);
    };

    load_queries(shared, attention, place, first_q);
    start_loading(walk, 0);
    QueryGradient dq;
    dq.clear();
    mod::GradientSums sums{};

    for (TileWalk next = walk; !walk.is_done(); walk = next) {
        next.advance();
        wait_for_copies();
        __syncthreads(); // this tile is here, and everyone has left the one before
        if (mod::kStages == 2) start_loading(next, next.tile() - walk.tile());
        Scores scores, d_scores;
        scores.clear();
        d_scores.clear();
        mma_rows(scores, shared.query(), shared.key(walk.step()));
        mma_rows(d_scores, shared.d_out(), shared.value(walk.step()));
        differentiate_tile(scores, d_scores, {attention, arguments, place},
                           {first_q, walk.tile() * mod::kKeyTile, shared.row_sums(),
                            4 * mod::kQueryTile, walk.is_full()},
                           sums);
        add_keys(dq, d_scores, shared.key(walk.step()));
        if (mod::kStages == 1) {
            __syncthreads(); // everyone has left this tile
            start_loading(next, next.tile() - walk.tile());
        }
    }
    if constexpr (mod::kAddsGradients)
        mod::flush_gradients(arguments, place.launch, place.head, place.b, place.h, place.h_kv,
                             sums);

    wait_for_copies(); // of the first tiles too, where no loop did
    __syncthreads();   // everyone has left the last tile
    store_result(QueryGradientTile{shared.base}, dq);
    __syncthreads();
    write_gradient<kThreads>(
        GradientPlane<Element>(attention.dq, attention.dq_flags, place.b, place.h),
        QueryGradientTile{shared.base}, first_q, attention.q_len, attention.scale);
}
