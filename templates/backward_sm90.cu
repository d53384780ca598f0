// Attention, backward, for Hopper: a block computes dk and dv for kKeyTile keys of one head of
// keys, or where blocks stay for one such tile after another, and adds their share of dq to its
// accumulator.
//
// Keys and values stay on chip; queries and d_out of every query head of the group pass by. One
// thread loads them through the copy engine. Two warpgroups of 64 keys each multiply:
//     S' = K Q'      P' = exp(modified' - lse)                dv += P' d_out
//     W' = V d_out'  dS' = P' * (W' - delta) * mod'           dk += dS' Q      dq += dS K
// Scores are transposed, so that P' and dS' are in registers what the products for dv and dk ask
// of their left operand. dS alone goes through shared memory, for dq, at which warpgroups take
// turns, or which both compute a part of; another thread adds it to memory. Gradients of captured
// buffers are summed in registers where what they read is one number for a key or the head, over a
// tile's keys where it is one for a query, over diagonals of dS where it depends on the distance,
// over rows or columns of keys as a grid where it depends on these, and one by one otherwise.
#include "mod.cuh"

#include "sm90/backward_layout.cuh"
#include "sm90/backward_output.cuh"
#include "sm90/backward_products.cuh"
#include "sm90/backward_query_gradient.cuh"
#include "sm90/backward_roles.cuh"
#include "sm90/backward_scores.cuh"
#include "sm90/backward_seen.cuh"
#include "sm90/backward_tiles.cuh"

using namespace sm90;

namespace {

using KeyGradient = float[round_up_16(mod::kHeadDim) / 2];
using ValueGradient = float[round_up_16(mod::kHeadDimV) / 2];

struct Consumer {
    const AttentionArguments& attention;
    const mod::Arguments& arguments;
    const BackwardMaps& maps;
    const Shared shared;
    const KeyTile only;                   // where blocks do not stay
    const int warpgroup, warp, held_lane; // among the consumers, in the warpgroup, in the warp
    unsigned step = 0;
    unsigned tiles = 0;      // of keys, before these
    unsigned first_step = 0; // with these keys
    bool starts = true;      // where blocks stay: no step yet with these keys
    Seen seen = Seen::both;  // of the tile that comes, where the band says so before it is here

    __device__ bool is_first() const {
        return kSavesRegisters || !mod::kBlocksStay ? step == first_step : starts;
    }
    __device__ int lane() const { return kAsksForLane ? lane_again() : held_lane; }
    __device__ int slot() const { return static_cast<int>(tiles % kKeySlots); }
    __device__ const KeyTile& keys() const {
        return mod::kBlocksStay ? KeyTile::in_shared(slot()) : only;
    }
    __device__ QueryPiece piece() const {
        return {shared, warpgroup, warp, lane(), Shared::slot_words(slot())};
    }
    __device__ int warp_key() const { return keys().first_kv + 64 * warpgroup + 16 * warp; }

    // `tile`: of queries, unless a map chose the one that is here.
    // dq_accumulator: of the head.
    __device__ void consume(ScoreGradients& gradients, GradientSums& sums, const HeadPlace& place,
                            int tile, bool is_last, float* dq_accumulator, KeyGradient& dk,
                            ValueGradient& dv) {
        if constexpr (mod::kHasMap) {
            const MappedTile arrived = MappedTile::load(shared.mapped_tile(step % 2));
            gradients.use_map(arrived.is_full);
            tile = arrived.index;
        }
        if constexpr (kSkipsHidden && !kSeesAhead) seen = seen_of(place, keys(), warpgroup, tile);
        const auto look_ahead = [&] {
            if (!is_last) await(place, tile + kTileStep, step + 1);
        };
        const auto multiply_for = [&](auto which) {
            constexpr Seen kSeen = decltype(which)::kValue;
            if (takes_query_gradient())
                multiply<kSeen, true>(gradients, sums, tile, dq_accumulator, dk, dv, look_ahead);
            else
                multiply<Seen::both, false>(gradients, sums, tile, dq_accumulator, dk, dv,
                                            look_ahead);
        };
        if constexpr (kSkipsHidden) {
            if (seen == Seen::other)
                skip(gradients, tile, look_ahead);
            else if (seen == Seen::own)
                multiply_for(SeenKeys<Seen::own>{});
            else
                multiply_for(SeenKeys<Seen::both>{});
        } else {
            multiply_for(SeenKeys<Seen::both>{});
        }
        ++step;
        if constexpr (mod::kBlocksStay) starts = false;
    }

    // The queries of a step, of this tile unless a map chose another. What can be known of them
    // before their products is found out here, under those of the tile before.
    __device__ void await(const HeadPlace& place, int tile, unsigned which_step) {
        shared.queries_full(which_step % 2).wait(which_step / 2 % 2);
        if constexpr (kSkipsHidden && kSeesAhead) seen = seen_of(place, keys(), warpgroup, tile);
    }

    // Whether the warpgroup multiplies for dq at this step: a piece, or all where they take turns.
    __device__ bool takes_query_gradient() const { return !kTakesTurns || has_turn(); }
    __device__ bool has_turn() const { return step % 2 == static_cast<unsigned>(warpgroup); }

    // A tile of queries that sees the other warpgroup's keys alone.
    template <typename LookAhead>
    __device__ void skip(const ScoreGradients& gradients, int tile, LookAhead look_ahead) {
        const int stage = static_cast<int>(step % 2);
        if (is_first()) shared.values().wait(tiles % 2);
        if (lane() == 0) shared.d_out_empty(stage).arrive();
        if constexpr (kTakesTurns)
            meet_at_d_scores(step, takes_query_gradient());
        else
            meet_at_d_scores();
        gradients.summation(shared).hand_over_nothing(step);
        if (takes_query_gradient()) {
            QueryGradient dq;
            begin_products();
            piece().multiply_keys_of(dq, stage, 1 - warpgroup);
            end_products();
            if (has_turn()) gradients.summation(shared).add_gathered(step, tile * mod::kQueryTile);
            wait_for_products<0>();
            QueryPiece::settle(dq);
            piece().hand_over(dq, step);
        }
        give_back_queries(stage);
        wait_for_d_scores();
        look_ahead();
    }

    // kTakes: as takes_query_gradient().
    template <Seen kSeen, bool kTakes, typename LookAhead>
    __device__ void multiply(ScoreGradients& gradients, GradientSums& sums, int tile,
                             float* dq_accumulator, KeyGradient& dk, ValueGradient& dv,
                             LookAhead look_ahead) {
        const int stage = static_cast<int>(step % 2);
        const unsigned parity = step / 2 % 2;
        const unsigned base = shared.base;
        const unsigned word = operand_word(base, kQueryPanel);
        const unsigned rows = word + warpgroup * (64 * kRowBytes >> 4);
        const unsigned query_word = word + stage * (kPanels * kQueryPanel >> 4);
        const unsigned d_out_word = word + stage * (kValuePanels * kQueryPanel >> 4);
        const unsigned origins = base + at::kOrigins + stage * (4 * mod::kQueryTile);
        const unsigned deltas = base + at::kDeltas + stage * (4 * mod::kQueryTile);
        Scores scores, d_scores;
        Fragments weights, d_fragments;
        QuerySums query_sums{};

        gradients.use_stage(shared, stage, 0);
        const int bias_stage = static_cast<int>(step % kBiasRing);
        gradients.use_matrices(base + at::kBiases + bias_stage * kBiasTileBytes,
                               base + at::kMatrixGradients + warpgroup * kPartBytes,
                               64 * warpgroup + 16 * warp);
        const int tile_query = tile * mod::kQueryTile;
        begin_products();
        issue_scores<at::kKeys, at::kQueries, mod::kHeadDim, kKeyPanelColumns>(
            scores, rows + Shared::slot_words(slot()), query_word);
        end_products();
        Sight sight;
        if constexpr (kLooksBetween) sight = gradients.look_early(tile_query);
        if (is_first()) shared.values().wait(tiles % 2);
        shared.d_out_full(stage).wait(parity);
        begin_products();
        issue_scores<at::kValues, at::kDOut, mod::kHeadDimV>(d_scores, rows, d_out_word);
        end_products();
        if constexpr (!kLooksBetween) sight = gradients.look_early(tile_query);
        if constexpr (kCopiesBiases) shared.biases_full(bias_stage).wait(step / kBiasRing % 2);
        if constexpr (kAtOnce) {
            wait_for_products<0>();
            pin(scores);
            pin(d_scores);
            wait_for_part(0);
            gradients.weigh_and_differentiate(scores, d_scores, weights, d_fragments, tile_query,
                                              origins, deltas, sums, query_sums);
        } else {
            wait_for_products<1>();
            pin(scores);
            gradients.weigh(scores, weights, tile_query, origins, sight);
            if constexpr (kDifferentiatesFirst) {
                wait_for_products<0>();
                pin(d_scores);
                to_fragments(weights, scores);
                gradients.differentiate(d_scores, scores, weights, deltas);
            }
        }
        if constexpr (kCopiesBiases && !kHoldsBiases) shared.biases_empty(bias_stage).arrive();
        pin(dv);
        pin(weights);
        begin_products();
        issue_sums<at::kDOut>(dv, weights, d_out_word);
        end_products();
        if constexpr (!kAtOnce) {
            if constexpr (!kDifferentiatesFirst) {
                wait_for_products<1>();
                pin(d_scores);
                gradients.differentiate(d_scores, scores, weights, deltas);
            }
            if constexpr (kSettlesEarly) finish_values<0>(dv, weights, stage);
            wait_for_part(0);
            gradients.finish(d_scores, tile_query, sums, query_sums);
            if constexpr (kAddsScores) gradients.matrices().store_part(d_scores, 0);
            if constexpr (kHoldsBiases) shared.biases_empty(bias_stage).arrive();
            to_fragments(d_fragments, d_scores);
        }
        store_for_queries(d_fragments, stage);
        publish_shared();
        if constexpr (kAddsParts) shared.piece_full(warpgroup).arrive();
        // dS is here, and everyone has left the one before.
        if constexpr (!kTakesTurns) meet_at_d_scores();

        QueryGradient dq;
        const auto issue_dq = [&] {
            begin_products();
            if constexpr (kSeen == Seen::own)
                piece().multiply_keys_of(dq, stage, warpgroup);
            else
                piece().multiply_keys(dq, stage);
            end_products();
        };
        const auto issue_dk = [&] {
            pin(dk);
            pin(d_fragments);
            begin_products();
            issue_sums<at::kQueries>(dk, d_fragments, query_word);
            end_products();
        };
        const auto finish_dk = [&] {
            pin(dk);
            pin(d_fragments);
            give_back_queries(stage);
        };
        const auto finish_dq = [&] {
            QueryPiece::settle(dq);
            if constexpr (mod::kDScoresStages == 1) shared.d_scores_empty().arrive();
            if constexpr (kAddsMatrices)
                piece().add(dq, dq_accumulator + static_cast<long long>(tile) *
                                                     (mod::kQueryTile * mod::kHeadDim));
            else
                piece().hand_over(dq, step);
        };
        if constexpr (kTakesTurns) {
            if constexpr (!kTakes) meet_at_d_scores(step, false);
            issue_dk();
            if constexpr (!kSettlesEarly) finish_values<1>(dv, weights, stage);
            if constexpr (!kTakes)
                gradients.summation(shared).hand_over(query_sums, step, tile_query);
            if constexpr (kTakes && kOverlapsSums) {
                meet_at_d_scores(step, true);
                issue_dq();
                wait_for_products<1>();
            } else {
                if constexpr (!kTakes) look_ahead();
                wait_for_products<0>();
            }
            finish_dk();
            if constexpr (kTakes) {
                if constexpr (!kOverlapsSums) {
                    meet_at_d_scores(step, true);
                    issue_dq();
                }
                gradients.summation(shared).hand_over(query_sums, step, tile_query);
                gradients.summation(shared).add_gathered(step, tile_query);
                look_ahead();
                wait_for_products<0>();
                finish_dq();
            }
        } else {
            issue_dq();
            if constexpr (!kSettlesEarly) finish_values<1>(dv, weights, stage);
            issue_dk();
            if constexpr (kParts == 2 && kAddsScores) {
                wait_for_part(1);
                gradients.matrices().store_part(d_scores, 1);
                publish_shared();
                shared.piece_full(warpgroup).arrive();
            }
            // Under the products.
            gradients.summation(shared).hand_over(query_sums, step, tile_query);
            if (has_turn()) gradients.summation(shared).add_gathered(step, tile_query);
            wait_for_products<1>();
            finish_dq();
            look_ahead();
            wait_for_products<0>();
            finish_dk();
        }
    }

    // Each thread for itself: it has read the tile's lse and delta.
    __device__ void give_back_queries(int stage) const { shared.queries_empty(stage).arrive(); }

    // dv has its part of the tile. Products alone have read d_out: a warp's last ends for all of
    // it.
    template <int kPending>
    __device__ void finish_values(ValueGradient& dv, Fragments& weights, int stage) const {
        wait_for_products<kPending>();
        pin(dv);
        pin(weights);
        if (lane() == 0) shared.d_out_empty(stage).arrive();
    }

    // dS, for dq and sums over tiles.
    __device__ void store_for_queries(const Fragments& d_scores, int stage) const {
        wait_for_d_scores();
        if constexpr (mod::kDScoresStages == 1) shared.d_scores_empty().wait((step & 1) ^ 1);
        store_by_queries(shared.base + at::kDScores + stage % mod::kDScoresStages * kDScoresBytes +
                             warpgroup * kQueryPanel,
                         d_scores, warp, lane());
    }

    // Until the part of gradients before this one has been added.
    __device__ void wait_for_part(int part) const {
        if constexpr (kAddsParts)
            shared.piece_empty(warpgroup).wait(((step * kParts + part) & 1) ^ 1);
    }

    // Until dv of the keys before these has left the memory that tiles of dS need.
    __device__ void wait_for_d_scores() const {
        if constexpr (mod::kBlocksStay)
            if (is_first() && tiles > 0) shared.d_values_read().wait(tiles % 2 ^ 1);
    }

    // Where blocks stay: every tile of keys.
    __device__ void run_on() {
#pragma unroll 1
        for (;; ++tiles) {
            shared.keys(slot()).wait(tiles / kKeySlots % 2);
            if (keys().is_none()) return;
            starts = true;
            if constexpr (kSavesRegisters) first_step = step;
            run();
        }
    }

    __device__ void run() {
        KeyGradient dk;
        ValueGradient dv;
        clear(dk);
        clear(dv);
        constexpr HeadLoop kLoop = kFindsHeads ? HeadLoop::finds_again : HeadLoop::keeps;
        visit_heads<kLoop>(
            attention, arguments, keys(), [&](const HeadPlace& place, TileRange tiles) {
                ScoreGradients gradients(attention, arguments, place, keys().first_kv, warp_key(),
                                         lane());
                GradientSums sums{};
                float* const dq_accumulator =
                    attention.dq_accumulator +
                    static_cast<long long>(place.b * attention.heads + place.h) *
                        padded(attention.q_len) * mod::kHeadDim;
                // Held, or they would be found again between the products of two tiles.
                int left = computed_again(tiles.end - tiles.begin);
                int tile = computed_again(tile_in_order(tiles, tiles.begin));
                if (left > 0) {
                    if (!mod::kBlocksStay && step == 0) shared.keys().wait(0);
                    await(place, tile, step);
                }
#pragma unroll 1
                for (; left > 0; --left, tile += kTileStep)
                    consume(gradients, sums, place, tile, left == 1, dq_accumulator, dk, dv);
                gradients.flush(sums);
            });
        if constexpr (mod::kBlocksStay) {
            if (is_first()) shared.values().wait(tiles % 2);
            wait_for_d_scores();
            if (lane() == 0) shared.values_empty().arrive();
        }
        const WarpOutput output{attention, maps, shared, warpgroup, warp, lane()};
        output.store_values(keys(), dv);
        synchronize(kLastProductBarrier, 128 * kConsumers);
        output.store_keys(keys(), slot(), dk);
    }
};

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flexc_backward_sm90(const __grid_constant__ AttentionArguments attention,
                        const __grid_constant__ mod::Arguments arguments,
                        const __grid_constant__ BackwardMaps maps) {
    let_next_start();
    const Shared shared{shared_address(shared_memory)};
    const KeyTile keys = KeyTile::only(attention, arguments);
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
    if (threadIdx.x == 0) shared.initialise();
    __syncthreads();
    if (warp < 4) {
        release_registers_to<kProducerRegisters>();
        serve_consumers(attention, arguments, maps, shared, keys, warp);
    } else {
        claim_registers<kConsumerRegisters>();
        Consumer consumer{attention, arguments,    maps,     shared,
                          keys,      warp / 4 - 1, warp % 4, static_cast<int>(threadIdx.x) % 32};
        mod::kBlocksStay ? consumer.run_on() : consumer.run();
    }
}
