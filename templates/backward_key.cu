// Attention, backward: one block computes dk and dv for kKeyTile keys of one head of keys. Where
// mod::kAccumulatesQueryGradient says so, it also adds their share of dq to dq_accumulator.
//
// Keys and values stay on chip; queries and d_out of every query head of the group pass by, one
// tile after the other:
//     P = exp(modified - lse)                dv += P' d_out
//     dS = P * (d_out V' - delta) * mod'     dk += dS' Q       dq += dS K
// Both dS and P go through shared memory, because each product wants another part of them.
#include "mod.cuh"

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
using ScoreTile = Tile<Element, mod::kQueryTile, mod::kKeyTile>;

using Scores = WarpResult<mod::kQueryTile, mod::kKeyTile, mod::kWarps>;
using QueryGradient = WarpResult<mod::kQueryTile, mod::kHeadDim, mod::kWarps>;
using KeyGradient = WarpResult<mod::kKeyTile, mod::kHeadDim, mod::kWarps>;
using ValueGradient = WarpResult<mod::kKeyTile, mod::kHeadDimV, mod::kWarps>;

// Shared memory, in this order: keys, values, weights, dS, and the stages: queries, d_out, lse and
// delta. When all is done, gradients pass through it on their way out.
constexpr int kRowSumBytes = 2 * 4 * mod::kQueryTile;
constexpr int kStageBytes = QueryTile::kBytes + DOutTile::kBytes + kRowSumBytes;
constexpr int kFirstStage = KeyTile::kBytes + ValueTile::kBytes + 2 * ScoreTile::kBytes;
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
    __device__ ScoreTile weights() const { return {base + KeyTile::kBytes + ValueTile::kBytes}; }
    __device__ ScoreTile d_scores() const { return {weights().base + ScoreTile::kBytes}; }
    __device__ Stage stage(int tile) const {
        return {base + kFirstStage + tile % mod::kStages * kStageBytes};
    }
};

// One head's queries and d_out, tile after tile.
struct QueryHead {
    TileSource<kThreads, QueryTile> q;
    TileSource<kThreads, DOutTile> d_out;

    __device__ QueryHead(const AttentionArguments& attention, const HeadPlace& place, int first_q)
        : q(Plane<Element>(attention.q, place.b, place.h), first_q),
          d_out(Plane<Element>(attention.d_out, place.b, place.h), first_q) {}

    __device__ void start_loading(Stage stage, const AttentionArguments& attention,
                                  const HeadPlace& place, int first_q) {
        q.load(stage.query(), attention.q_len - first_q);
        d_out.load(stage.d_out(), attention.q_len - first_q);
        load_row_sums<kThreads, mod::kQueryTile>(stage.row_sums(), attention, place.b, place.h,
                                                 first_q);
        q.advance(mod::kQueryTile);
        d_out.advance(mod::kQueryTile);
    }
};

__device__ void load_keys(Shared shared, const AttentionArguments& attention, int b, int h_kv,
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

__device__ void add_to_query_gradient(QueryGradient& dq, const AttentionArguments& attention,
                                      const HeadPlace& place, int first_q) {
    constexpr bool kPaired = mod::kHeadDim % 2 == 0;
    const long long head = static_cast<long long>(place.b) * attention.heads + place.h;
    float* const rows =
        attention.dq_accumulator + (head * attention.q_len + first_q) * mod::kHeadDim;
#pragma unroll
    for (int row = 0; row < QueryGradient::kRows; ++row) {
        const int q = QueryGradient::row(row);
        if (first_q + q >= attention.q_len) break;
        float* const to = rows + q * mod::kHeadDim + QueryGradient::column(0);
#pragma unroll
        for (int i = 0; i < QueryGradient::kColumns; ++i) {
            const int column = QueryGradient::column(i);
            if (mod::kHeadDim % 16 == 0 ? QueryGradient::has_unit(i / 2)
                                        : column + 1 < mod::kHeadDim)
                add_atomically<kPaired>(to + 8 * i, dq.at(row, i, 0), dq.at(row, i, 1));
            else if (!kPaired && column + 1 == mod::kHeadDim)
                add_atomically(to + 8 * i, dq.at(row, i, 0));
        }
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flexc_backward_key(const __grid_constant__ AttentionArguments attention,
                       const __grid_constant__ mod::Arguments arguments) {
    // Tiles of one head are neighbours, so that its queries stay in L2. Where a band makes early
    // keys seen by more queries, they go first.
    const int key_tiles = (attention.kv_len + mod::kKeyTile - 1) / mod::kKeyTile;
    const int first_kv = static_cast<int>(blockIdx.x) % key_tiles * mod::kKeyTile;
    const int kv_head = static_cast<int>(blockIdx.x) / key_tiles;
    const int b = kv_head / attention.kv_heads, h_kv = kv_head % attention.kv_heads;
    const int last_kv = min(first_kv + mod::kKeyTile, attention.kv_len) - 1;
    const int group = attention.heads / attention.kv_heads;

    const Shared shared{shared_address(shared_memory)};
    load_keys(shared, attention, b, h_kv, first_kv);

    KeyGradient dk;
    ValueGradient dv;
    dk.clear();
    dv.clear();

    for (int h = h_kv * group; h < (h_kv + 1) * group; ++h) {
        const HeadPlace place(attention, arguments, b * attention.heads + h);
        const TileRange range = tiles_between(first_kv - place.high, last_kv - place.low,
                                              attention.q_len, mod::kQueryTile);
        QueryHead head(attention, place, range.begin * mod::kQueryTile);
        const auto start_loading = [&](int tile) {
            if (tile < range.end)
                head.start_loading(shared.stage(tile), attention, place, tile * mod::kQueryTile);
            commit_copies();
        };
        mod::GradientSums sums{};

        __syncthreads(); // everyone has left the head before
        if (mod::kStages == 2) start_loading(range.begin);
        for (int tile = range.begin; tile < range.end; ++tile) {
            const int first_q = tile * mod::kQueryTile;
            const Stage stage = shared.stage(tile);
            if (mod::kStages == 1) {
                __syncthreads(); // everyone has left the tile before
                start_loading(tile);
            }
            wait_for_copies<0>();
            __syncthreads(); // this tile is here, and everyone has left the one before
            if (mod::kStages == 2) start_loading(tile + 1);

            Scores scores, d_scores;
            scores.clear();
            d_scores.clear();
            if (Scores::has_unit(0)) {
                add_product_of_rows(scores, stage.query(), shared.key());
                add_product_of_rows(d_scores, stage.d_out(), shared.value());
                ScoreRows<Scores::kRows> rows;
                read_rows<Scores, mod::kQueryTile>(rows, stage.row_sums(), attention, arguments,
                                                   place, first_q);
                differentiate_tile(scores, d_scores, rows, attention, arguments, place, sums,
                                   first_q, first_kv);
                store_result(shared.weights(), scores);
                store_result(shared.d_scores(), d_scores);
            }
            __syncthreads(); // P and dS are here

            add_product_of_columns(dv, shared.weights(), stage.d_out());
            add_product_of_columns(dk, shared.d_scores(), stage.query());
            if constexpr (mod::kAccumulatesQueryGradient) {
                QueryGradient dq;
                dq.clear();
                add_product(dq, shared.d_scores(), shared.key());
                add_to_query_gradient(dq, attention, place, first_q);
            }
        }
        if constexpr (mod::kAddsGradients)
            mod::flush_gradients(arguments, place.launch, place.head, b, h, h_kv, sums);
    }

    wait_for_copies<0>();
    __syncthreads(); // everyone has left the last tile
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
