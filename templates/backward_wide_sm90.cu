// Attention, backward, for Hopper, of heads too wide for backward_sm90.cu: one block computes dk
// and dv of 64 keys of one KV head, and adds their share of dq to its accumulator.
//
// The loop over tiles of queries and d_out is the same. Both consumer warpgroups have the same
// keys. Each has half of a tile's queries in the products on the left, which sum over columns, and
// half of the columns in the others, which sum over keys or queries:
//     S^T  = K Q^T      P^T  = exp(mod(S^T) - lse)                   dv += P^T d_out
//     dP^T = V d_out^T  dS^T = P^T * (dP^T - delta) * mod'(S^T)      dk += dS^T Q      dq += dS K
// So warpgroups exchange P and dS through shared memory, which leaves no room for dq: it is added
// to memory from registers.
#include "mod.cuh"

#include "sm80/row_references.cuh"
#include "sm90/backward_layout.cuh"
#include "sm90/backward_mma.cuh"
#include "sm90/backward_output.cuh"
#include "sm90/backward_producer.cuh"
#include "sm90/backward_score_order.cuh"
#include "sm90/backward_share.cuh"
#include "sm90/gradients/tile_warps.cuh"

using namespace sm90;
using mod::Element;

namespace {

static_assert(kSharesKeys && mod::kQueryTile == 64 && !mod::kDeterministic && !kStagesIndex2d &&
              !kSumsIndex2d);

using KeyShare = Share<kPanels>;
using ValueShare = Share<kValuePanels>;
using KeyGradient = KeyShare::Sums;
using ValueGradient = ValueShare::Sums;
using QueryGradient = KeyShare::Sums;

// dq is added a half at once, a half under the next tile's scores: memory takes additions more
// slowly than products make them, and a warp that adds waits for it.
constexpr int kGroupsOfShare = 4 * kPanels, kGroupsAtOnce = kGroupsOfShare / 2;
struct HeldGradient {
    float sums[4 * (kGroupsOfShare - kGroupsAtOnce)];
    float* to; // this thread's place in a row block of dq's accumulator
};

struct Consumer {
    const KernelArguments& attention;
    const mod::Arguments& arguments;
    const BackwardTensorMaps& maps;
    const Shared shared;
    const KeyTile keys;
    const int warpgroup, warp, lane; // among the consumers, in the warpgroup, in the warp
    int step = 0;

    __device__ int warp_key() const { return keys.first_kv + 16 * warp; }
    __device__ int first_query() const { return kScoreQueries * warpgroup; }

    // Processes one tile of queries. tile: its index, unless a block mask has chosen which tile
    // arrives. dq_head: start of the head's sums of dq, at this thread's place in a row block.
    __device__ void consume(ScoreGradients& gradients, GradientSums& sums, int tile, float* dq_head,
                            KeyGradient& dk, ValueGradient& dv, HeldGradient& held) {
        const int stage = step % 2;
        const unsigned parity = step / 2 % 2;
        const unsigned word = operand_word(shared.base, kKeyPanel);
        const unsigned query_word = word + stage * (kPanels * kQueryPanel >> 4);
        const unsigned d_out_word = word + stage * (kValuePanels * kQueryPanel >> 4);
        const unsigned tile_word = word + stage * (kDScoresBytes >> 4);
        const unsigned half = first_query() * kRowBytes >> 4;
        const RowStatistics statistics{shared.base + kLayout.statistics + stage * kStatisticBytes +
                                       4 * first_query()};
        Scores scores, d_scores;
        Fragments p, d_fragments;
        QuerySums query_sums{};
        VisibleBits visible_bits;

        gradients.use_stage(shared, stage, first_query());
        if (step == 0) shared.keys().wait(0);
        shared.queries_full(stage).wait(parity);
        tile = StageTile::arrived(shared, stage, tile, gradients);
        const int tile_query = tile * mod::kQueryTile + first_query();
        const ScoreStep parts{shared,      warpgroup,   static_cast<unsigned>(step),
                              tile_query,  statistics,  gradients,
                              sums,        scores,      d_scores,
                              p,           d_fragments, query_sums,
                              visible_bits};
        fence_wgmma();
        issue_scores<kLayout.keys, kLayout.queries, mod::kHeadDim>(scores, word, query_word + half);
        commit_wgmma();
        if (step == 0) shared.values().wait(0);
        shared.d_out_full(stage).wait(parity);
        const bool has_references = gradients.has_references(statistics);
        fence_wgmma();
        issue_scores<kLayout.values, kLayout.d_out, mod::kHeadDimV>(d_scores, word,
                                                                    d_out_word + half);
        commit_wgmma();
        MaskOrder::under_both_products(parts);
        add_groups<kGroupsAtOnce, kGroupsOfShare>(held.to, held.sums);
        ScoreOrder::before_dv(parts, has_references);
        store_by_queries(half_of(kLayout.p, stage), p, warp, lane);
        publish_shared();
        synchronize(kPBarrier, 128 * kConsumers);
        pin(dv);
        fence_wgmma();
        ValueShare{warpgroup}.issue<kLayout.p, 16 * kRowBytes, true, kLayout.d_out, true>(
            dv, tile_word, d_out_word);
        commit_wgmma();
        ScoreOrder::under_dv(parts);
        store_by_queries(half_of(kLayout.d_scores, stage), d_fragments, warp, lane);
        publish_shared();
        // Waits until dS is in shared memory and both warpgroups have finished reading the one
        // before.
        synchronize_d_scores();

        QueryGradient dq;
        fence_wgmma();
        KeyShare{warpgroup}.issue<kLayout.d_scores, 32, false, kLayout.keys, false>(dq, tile_word,
                                                                                    word);
        commit_wgmma();
        pin(dk);
        fence_wgmma();
        KeyShare{warpgroup}.issue<kLayout.d_scores, 16 * kRowBytes, true, kLayout.queries, true>(
            dk, tile_word, query_word);
        commit_wgmma();
        gradients.summation(shared).hand_over(query_sums, step, tile_query);
        wait_for_wgmma<1>();
        pin(dv);
        if (lane == 0) shared.d_out_empty(stage).arrive();
        pin(dq);
        held.to = dq_head + static_cast<long long>(tile) * (kRowBlock * mod::kHeadDim);
#pragma unroll
        for (int i = 4 * kGroupsAtOnce; i < 4 * kGroupsOfShare; ++i)
            held.sums[i - 4 * kGroupsAtOnce] = in_another_register(dq[i]);
        add_groups<0, kGroupsAtOnce>(held.to, dq);
        wait_for_wgmma<0>();
        pin(dk);
        // Every thread arrives, since each has read the tile's lse and delta.
        shared.queries_empty(stage).arrive();
        gradients.finish_tile(sums, tile_query);
        ++step;
    }

    // Returns the shared memory address of the rows of this warpgroup's queries in a stage of P or
    // dS. tile: offset of P or dS in the layout.
    __device__ unsigned half_of(int tile, int stage) const {
        return shared.base + tile + stage * kDScoresBytes + first_query() * kRowBytes;
    }

    // Adds groups kBegin ... kEnd - 1 of the warpgroup's groups of eight columns of dq to memory;
    // `sums` starts with group kBegin.
    template <int kBegin, int kEnd, int kCount>
    __device__ void add_groups(float* to, const float (&sums)[kCount]) const {
#pragma unroll
        for (int i = kBegin; i < kEnd; ++i) {
            const int group = KeyShare{warpgroup}.place(i), at = 4 * (i - kBegin);
            if (kPanelColumns * kPanels == mod::kHeadDim || group < kGroups)
                add_four(to + group * (kGroupBytes / 4), sums[at], sums[at + 1], sums[at + 2],
                         sums[at + 3]);
        }
    }

    __device__ void store(const KeyGradient& dk, const ValueGradient& dv) const {
        constexpr int kThreadsOfBoth = 128 * kConsumers;
        const Corner corner{keys.b, keys.h_kv, warp_key(), 0};
        const unsigned rows = shared.base + 16 * warp * kRowBytes;
        // P of the last tiles of queries is no longer read.
        constexpr int kWarpBytes = 16 * kRowBytes;
        static_assert(kLayout.query_gradient - kLayout.p >= 4 * kConsumers * kWarpBytes);
        const unsigned own_rows = shared.base + kLayout.p + (4 * warpgroup + warp) * kWarpBytes;
        const bool dk_is_float = (attention.dk_flags & kOutputF32) != 0;
        const bool dv_is_float = (attention.dv_flags & kOutputF32) != 0;
        // Waits until the last MMAs of both warpgroups have read keys and values, which are
        // overwritten.
        synchronize(kLastMmaBarrier, kThreadsOfBoth);
        if (dv_is_float)
            store_floats(attention.dv, attention.dv_flags, corner, mod::kHeadDimV, attention.kv_len,
                         ValueShare{warpgroup}, dv, 1, own_rows);
        else
            write_rows<kValuePanels, kKeyPanel>(rows + kLayout.values, ValueShare{warpgroup}, dv,
                                                1);
        if (dk_is_float)
            store_floats(attention.dk, attention.dk_flags, corner, mod::kHeadDim, attention.kv_len,
                         KeyShare{warpgroup}, dk, attention.scale, own_rows);
        else
            write_rows<kPanels, kKeyPanel>(rows + kLayout.keys, KeyShare{warpgroup}, dk,
                                           attention.scale);
        // Waits until both warpgroups have written their columns of each row.
        synchronize(kLastMmaBarrier, kThreadsOfBoth);
        if (lane != 0) return;
        if (warpgroup == 0 && !dv_is_float)
            store_rows<kValuePanels, kKeyPanel>(maps.dv, corner, rows + kLayout.values);
        if (warpgroup == 1 && !dk_is_float)
            store_rows<kPanels, kKeyPanel>(maps.dk, corner, rows + kLayout.keys);
        wait_for_store_reads();
    }

    __device__ void run() {
        KeyGradient dk;
        ValueGradient dv;
        clear(dk);
        clear(dv);
        const long long rows = padded(attention.q_len);
        const auto dq_of = [&](int h) {
            return attention.dq_accumulator +
                   (keys.b * attention.heads + h) * rows * mod::kHeadDim + 4 * (32 * warp + lane);
        };
        HeldGradient held;
        clear(held.sums);
        held.to = dq_of(keys.h_kv * (attention.heads / attention.kv_heads)); // zeros may go there
        visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
            ScoreGradients gradients(attention, arguments, place, keys.length(attention),
                                     keys.first_kv, warp_key(), lane);
            GradientSums sums{};
            float* const dq = dq_of(place.h);
#pragma unroll 1
            for (int tile = tiles.begin; tile < tiles.end; ++tile)
                consume(gradients, sums, tile, dq, dk, dv, held);
            gradients.flush(sums);
        });
        add_groups<kGroupsAtOnce, kGroupsOfShare>(held.to, held.sums);
        store(dk, dv);
    }
};

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flexc_backward_wide_sm90(const __grid_constant__ KernelArguments attention,
                             const __grid_constant__ mod::Arguments arguments,
                             const __grid_constant__ BackwardTensorMaps maps) {
    let_next_start();
    const Shared shared{shared_address(shared_memory)};
    const KeyTile keys = KeyTiles::of_block(attention, arguments);
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
    if (threadIdx.x == 0) shared.initialise();
    __syncthreads();
    if (warp < 4) {
        release_registers_to<kProducerRegisters>();
        if (warp == 0 && threadIdx.x % 32 == 0)
            load_queries(attention, arguments, maps, shared, keys);
        if (kWarpStagesRows && warp == 2) stage_values(attention, arguments, shared, keys);
        TileWarps::serve(attention, arguments, shared, keys, warp);
    } else {
        claim_registers<kConsumerRegisters>();
        Consumer{attention, arguments,    maps,     shared,
                 keys,      warp / 4 - 1, warp % 4, static_cast<int>(threadIdx.x) % 32}
            .run();
    }
}
