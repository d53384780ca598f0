// Attention, backward: one block computes dk and dv for kKeyTile keys of one head of keys. Where
// mod::kAccumulatesQueryGradient says so, it also adds their share of dq to dq_accumulator.
//
// Keys and values stay on chip; queries and d_out of every query head of the group pass by, one
// tile after the other:
//     P = exp(modified - lse)                dv += P' d_out
//     dS = P * (d_out V' - delta) * mod'     dk += dS' Q       dq += dS K
// Both dS and P go through shared memory, because each product wants another part of them.
#include "mod.cuh"

#include "common/tile_walk.cuh"
#include "sm80/backward_output.cuh"
#include "sm80/backward_scores.cuh"
#include "sm80/row_references.cuh"

using namespace sm80;
using mod::Element;

namespace {

constexpr int kThreads = 32 * mod::kWarps;

using KeyTile = Tile<Element, mod::kKeyTile, mod::kHeadDim>;
using ValueTile = Tile<Element, mod::kKeyTile, mod::kHeadDimV>;
using QueryTile = Tile<Element, mod::kQueryTile, mod::kHeadDim>;
using DOutTile = Tile<Element, mod::kQueryTile, mod::kHeadDimV>;
using PTile = Tile<Element, mod::kQueryTile, mod::kKeyTile>;

using KeyGradient = WarpResult<mod::kKeyTile, mod::kHeadDim, mod::kWarps>;
using ValueGradient = WarpResult<mod::kKeyTile, mod::kHeadDimV, mod::kWarps>;

// Scores and dq take turns in the registers that dk and dv leave, for so many queries at a time
// that nothing spills: rows are halved until a thread holds no more than `most` values.
constexpr int rows_at_a_time(int columns, int most) {
    int rows = mod::kQueryTile;
    while (rows % 32 == 0 && rows * columns > most * kThreads)
        rows /= 2;
    return rows;
}
constexpr bool kCrowded = mod::kKeyTile * (mod::kHeadDim + mod::kHeadDimV) >= 128 * kThreads;
constexpr bool kGreedy = mod::kSavesRegisters > 0 || kHasColumnValues ||
                         mod::kElementGradients > 0; // a mod that needs many
constexpr int kMostScores = !kCrowded || !kGreedy ? 32 : mod::kSavesRegisters < 2 ? 16 : 8;
constexpr int kScoreRows = rows_at_a_time(mod::kKeyTile, kMostScores);
constexpr int kGradientRows =
    rows_at_a_time(mod::kHeadDim, kCrowded&& mod::kHeadDim <= 128 ? 16 : 32);
using Scores = WarpResult<kScoreRows, mod::kKeyTile, mod::kWarps>;
using QueryGradient = WarpResult<kGradientRows, mod::kHeadDim, mod::kWarps>;

// Shared memory, in this order: keys, values, p, dS, and the stages: queries, d_out, lse and
// delta. When all is done, gradients pass through it on their way out.
constexpr int kRowSumBytes = 2 * 4 * mod::kQueryTile;
constexpr int kStageBytes = QueryTile::kBytes + DOutTile::kBytes + kRowSumBytes;
constexpr int kFirstStage = KeyTile::kBytes + ValueTile::kBytes + 2 * PTile::kBytes;
constexpr int kUsedBytes = kFirstStage + mod::kStages * kStageBytes;
using KeyGradientTile = Tile<float, mod::kKeyTile, mod::kHeadDim>;
using ValueGradientTile = Tile<float, mod::kKeyTile, mod::kHeadDimV>;
static_assert(kUsedBytes <= mod::kSharedBytes);
static_assert(KeyGradientTile::kBytes <= mod::kSharedBytes);
static_assert(ValueGradientTile::kBytes <= mod::kSharedBytes);
static_assert(mod::kStages == 1 || mod::kStages == 2);

extern __shared__ __align__(128) unsigned char shared_memory[];

struct Stage {
    unsigned base;
    __device__ QueryTile query() const { return {base}; }
    __device__ DOutTile d_out() const { return {base + QueryTile::kBytes}; }
    __device__ unsigned row_sums() const { return base + QueryTile::kBytes + DOutTile::kBytes; }
};

struct Shared {
    unsigned base;
    __device__ KeyTile key() const { return {base}; }
    __device__ ValueTile value() const { return {base + KeyTile::kBytes}; }
    __device__ PTile p() const { return {base + KeyTile::kBytes + ValueTile::kBytes}; }
    __device__ PTile d_scores() const { return {p().base + PTile::kBytes}; }
    __device__ Stage stage(int step) const {
        return {base + kFirstStage + step % mod::kStages * kStageBytes};
    }
};

// Addresses are computed anew for each tile: registers are scarcer than time.
__device__ void load_queries(Stage stage, const KernelArguments& attention, int b, int h,
                             int first_q) {
    h = computed_again(h);
    const Plane<Element> q(attention.q, b, h), d_out(attention.d_out, b, h);
    load_tile<kThreads>(stage.query(), q, q.aligned_to(kCopyBytes<Element, mod::kHeadDim>), first_q,
                        attention.q_len);
    load_tile<kThreads>(stage.d_out(), d_out, d_out.aligned_to(kCopyBytes<Element, mod::kHeadDimV>),
                        first_q, attention.q_len);
    load_row_sums<kThreads, mod::kQueryTile>(stage.row_sums(), attention, b, h, first_q);
}

__device__ void load_keys(Shared shared, const KernelArguments& attention, int b, int h_kv,
                          int first_kv) {
    const Plane<Element> k(attention.k, b, h_kv), v(attention.v, b, h_kv);
    load_tile<kThreads>(shared.key(), k, k.aligned_to(kCopyBytes<Element, mod::kHeadDim>), first_kv,
                        attention.kv_len);
    load_tile<kThreads>(shared.value(), v, v.aligned_to(kCopyBytes<Element, mod::kHeadDimV>),
                        first_kv, attention.kv_len);
    clear_padding<kThreads>(shared.key());
    clear_padding<kThreads>(shared.value());
    for (int i = 0; i < mod::kStages; ++i) {
        clear_padding<kThreads>(shared.stage(i).query());
        clear_padding<kThreads>(shared.stage(i).d_out());
    }
}

__device__ void add_to_query_gradient(const QueryGradient& dq, const KernelArguments& attention,
                                      const HeadPlace& place, int first_q) {
    const long long head =
        static_cast<long long>(place.b) * attention.heads + computed_again(place.h);
    const int q = first_q + QueryGradient::row(0);
    float* const rows = attention.dq_accumulator + (head * attention.q_len + q) * mod::kHeadDim +
                        QueryGradient::first_column();
    const int columns = mod::kHeadDim - QueryGradient::first_column(); // that exist from there on
#pragma unroll
    for (int row = 0; row < QueryGradient::kRows; ++row)
#pragma unroll
        for (int unit = 0; unit < QueryGradient::kUnits; ++unit) {
            const bool whole = mod::kHeadDim % 16 == 0 && QueryGradient::has_unit(unit);
            add_atomically<mod::kHeadDim % 4 == 0>(rows + 8 * row * mod::kHeadDim + 16 * unit,
                                                   q + 8 * row >= attention.q_len ? 0
                                                   : whole                        ? 16
                                                           : columns - 16 * unit,
                                                   dq.pair(row, 2 * unit),
                                                   dq.pair(row, 2 * unit + 1));
        }
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flexc_backward_key(const __grid_constant__ sm80::KernelArguments attention,
                       const __grid_constant__ mod::Arguments arguments) {
    // Tiles of one head are neighbours, so that its queries stay in L2. Where a band makes early
    // keys seen by more queries, they go first, and where there is a block mask, the longest.
    const int block = static_cast<int>(blockIdx.x);
    const int key_tiles = (attention.kv_len + mod::kKeyTile - 1) / mod::kKeyTile;
    const int kv_heads = mod::kLoopsOverHeads ? static_cast<int>(gridDim.x) / key_tiles
                                              : attention.batch * attention.kv_heads;
    const int kv_head =
        mod::first_kv_head(arguments) + (mod::kHasBlockMask ? block % kv_heads : block / key_tiles);
    const int b = kv_head / attention.kv_heads, h_kv = kv_head % attention.kv_heads;
    const int group = attention.heads / attention.kv_heads;
    const int key_tile = mod::kHasBlockMask
                             ? row_in_order(attention.block_mask, b, h_kv * group, block / kv_heads)
                             : block % key_tiles;
    const int first_kv = key_tile * mod::kKeyTile;
    const int last_kv = min(first_kv + mod::kKeyTile, attention.kv_len) - 1;

    const Shared shared{shared_address(shared_memory)};
    load_keys(shared, attention, b, h_kv, first_kv);

    KeyGradient dk;
    ValueGradient dv;
    dk.clear();
    dv.clear();

    for (int h = h_kv * group; h < (h_kv + 1) * group; ++h) {
        const HeadPlace place(attention, arguments, b * attention.heads + h);
        const auto start_loading = [&](const TileWalk& at) {
            if (!at.is_done())
                load_queries(shared.stage(at.step()), attention, b, h, at.tile() * mod::kQueryTile);
        };
        mod::GradientSums sums{};

        __syncthreads(); // everyone has left the head before
        TileWalk walk(
            attention.block_mask, b, h, key_tile,
            tiles_between(place.queries_of(first_kv, last_kv), attention.q_len, mod::kQueryTile));
        if (mod::kStages == 2) start_loading(walk);
        for (TileWalk next = walk; !walk.is_done(); walk = next) {
            next.advance();
            const int first_q = walk.tile() * mod::kQueryTile;
            const Stage stage = shared.stage(walk.step());
            if (mod::kStages == 1) {
                __syncthreads(); // everyone has left the tile before
                start_loading(walk);
            }
            wait_for_copies();
            __syncthreads(); // this tile is here, and everyone has left the one before
            if (mod::kStages == 2) start_loading(next);

#pragma unroll 1
            for (int row = 0; row < mod::kQueryTile && Scores::has_unit(0); row += kScoreRows) {
                Scores scores, d_scores;
                scores.clear();
                d_scores.clear();
                mma_rows(scores, rows_of<kScoreRows>(stage.query(), row), shared.key());
                mma_rows(d_scores, rows_of<kScoreRows>(stage.d_out(), row), shared.value());
                differentiate_tile(scores, d_scores, {attention, arguments, place},
                                   {first_q + row, first_kv, stage.row_sums() + 4 * row,
                                    4 * mod::kQueryTile, walk.is_full()},
                                   sums);
                store_result(rows_of<kScoreRows>(shared.p(), row), scores);
                store_result(rows_of<kScoreRows>(shared.d_scores(), row), d_scores);
            }
            __syncthreads(); // P and dS are here

            mma_columns(dv, shared.p(), stage.d_out());
            mma_columns(dk, shared.d_scores(), stage.query());
            if constexpr (mod::kAccumulatesQueryGradient) {
#pragma unroll 1
                for (int row = 0; row < mod::kQueryTile; row += kGradientRows) {
                    QueryGradient dq;
                    dq.clear();
                    add_product(dq, rows_of<kGradientRows>(shared.d_scores(), row), shared.key());
                    add_to_query_gradient(dq, attention, place, first_q + row);
                }
            }
        }
        if constexpr (mod::kAddsGradients)
            mod::flush_gradients(arguments, place.launch, place.head, b, h, h_kv, sums);
    }

    wait_for_copies(); // of the first tiles too, where no loop did
    __syncthreads();   // everyone has left the last tile
    store_result(KeyGradientTile{shared.base}, dk);
    __syncthreads();
    write_gradient<kThreads>(GradientPlane<Element>(attention.dk, attention.dk_flags, b, h_kv),
                             KeyGradientTile{shared.base}, first_kv, attention.kv_len,
                             attention.scale);
    __syncthreads();
    store_result(ValueGradientTile{shared.base}, dv);
    __syncthreads();
    write_gradient<kThreads>(GradientPlane<Element>(attention.dv, attention.dv_flags, b, h_kv),
                             ValueGradientTile{shared.base}, first_kv, attention.kv_len, 1);
}
