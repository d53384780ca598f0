// Attention, backward, for Hopper: a block computes dk and dv of kKeyTile keys of one KV head, or
// if the kernel is persistent, of one such tile after another, and adds their share of dq to its
// accumulator.
//
// Keys and values stay in shared memory; the block loops over tiles of queries and d_out of all
// query heads of the group, which one thread loads through TMA. Two consumer warpgroups of 64 keys
// each compute, with mod' the derivative of the score mod:
//     S^T  = K Q^T      P^T  = exp(mod(S^T) - lse)                   dv += P^T d_out
//     dP^T = V d_out^T  dS^T = P^T * (dP^T - delta) * mod'(S^T)      dk += dS^T Q      dq += dS K
// Accumulators of transposed scores have the layout of a left operand in registers, as the products
// for dv and dk need it. Only dS goes through shared memory, for dq; warpgroups compute dq
// alternately, or each a part of it, and a producer thread adds it to memory.
//
// A kernel for gradients of buffers alone, behind one for dq, dk and dv, computes S, dP and dS
// only.
//
// Gradients of captured buffers are summed by what the index of the read depends on: the head or
// the key, in registers; the query, over a tile's keys; the distance q - kv, over diagonals of dS;
// the row or column of a 2-D key index, over those; those of tables, dense biases and shifted
// reads, a tile at a time. All others are added one by one.
#include "mod.cuh"

#include "sm80/row_references.cuh"
#include "sm90/backward_dq_writer.cuh"
#include "sm90/backward_key_halves.cuh"
#include "sm90/backward_key_tiles.cuh"
#include "sm90/backward_layout.cuh"
#include "sm90/backward_mma.cuh"
#include "sm90/backward_output.cuh"
#include "sm90/backward_product_order.cuh"
#include "sm90/backward_roles.cuh"
#include "sm90/backward_score_order.cuh"
#include "sm90/backward_scores.cuh"
#include "sm90/backward_sequence_ends.cuh"

using namespace sm90;

namespace {

using KeyGradient = float[round_up_16(mod::kHeadDim) / 2];
using ValueGradient = float[round_up_16(mod::kHeadDimV) / 2];

struct Consumer {
    const KernelArguments& attention;
    const mod::Arguments& arguments;
    const BackwardTensorMaps& maps;
    const Shared shared;
    KeyTiles key_tiles;
    const int warpgroup, warp, held_lane; // among the consumers, in the warpgroup, in the warp
    unsigned step = 0;
    KeyHalvesOfTile key_halves{};

    __device__ int lane() const { return lane_of_form(held_lane); }
    __device__ const KeyTile& keys() const { return key_tiles.keys(); }
    __device__ QueryPiece piece() const {
        return {shared, warpgroup, warp, lane(), Shared::slot_words(key_tiles.slot())};
    }
    __device__ int warp_key() const { return keys().first_kv + 64 * warpgroup + 16 * warp; }

    // Processes one tile of queries. tile: its index, unless a block mask has chosen which tile
    // arrives. dq_accumulator: start of the head's sums of dq.
    __device__ void consume(ScoreGradients& gradients, GradientSums& sums, const HeadPlace& place,
                            int tile, bool is_last, float* dq_accumulator, KeyGradient& dk,
                            ValueGradient& dv) {
        tile = StageTile::arrived(shared, step % 2, tile, gradients);
        key_halves.find_arrived(place, keys(), warpgroup, tile);
        SequenceEnds::clear_queries(*this, tile);
        const auto await_next = [&] {
            if (!is_last) await(place, tile + kTileStep, step + 1);
        };
        const auto multiply_for = [&](auto which) {
            constexpr KeyHalves kHalves = decltype(which)::kValue;
            constexpr DqOwner kOwner = kFindsDqOwnerLate ? DqOwner::unknown : DqOwner::self;
            if (kFindsDqOwnerLate || takes_query_gradient())
                multiply<kHalves, kOwner>(gradients, sums, tile, dq_accumulator, dk, dv,
                                          await_next);
            else
                multiply<KeyHalves::both, DqOwner::other>(gradients, sums, tile, dq_accumulator, dk,
                                                          dv, await_next);
        };
        key_halves.visit(multiply_for, [&] { skip(gradients, tile, await_next); });
        ++step;
        key_tiles.end_step();
    }

    // Waits for the queries of a step, and finds which keys they see, while the MMAs of the step
    // before run. `tile` is theirs unless a block mask chooses another.
    __device__ void await(const HeadPlace& place, int tile, unsigned which_step) {
        shared.queries_full(which_step % 2).wait(which_step / 2 % 2);
        key_halves.find_next(place, keys(), warpgroup, tile);
    }

    // Returns whether this warpgroup computes dq, or a piece of it, at this step. Where warpgroups
    // alternate, one of them computes all of dq; else each computes a piece.
    __device__ bool takes_query_gradient() const { return !kAlternatesDq || adds_query_sums(); }
    // Returns whether this warpgroup adds the block's sums by query to memory at this step.
    __device__ bool adds_query_sums() const { return step % 2 == static_cast<unsigned>(warpgroup); }

    // Handles a tile of queries that sees none of this warpgroup's keys, only the other's.
    template <typename AwaitNext>
    __device__ void skip(const ScoreGradients& gradients, int tile, AwaitNext await_next) {
        const int stage = static_cast<int>(step % 2);
        key_tiles.wait_for_values(shared, step);
        if (lane() == 0) shared.d_out_empty(stage).arrive();
        DScoresBarrier::wait(step, takes_query_gradient());
        gradients.summation(shared).hand_over_zeros(step);
        if (takes_query_gradient()) {
            QueryGradient dq;
            fence_wgmma();
            piece().multiply_keys_of(dq, stage, 1 - warpgroup);
            commit_wgmma();
            if (adds_query_sums())
                gradients.summation(shared).add_gathered(step, tile * mod::kQueryTile);
            wait_for_wgmma<0>();
            QueryPiece::wait_for_dq(dq);
            piece().hand_over(dq, step);
        }
        release_queries(stage);
        key_tiles.wait_for_d_scores(shared, step);
        await_next();
    }

    template <KeyHalves kHalves, DqOwner kOwner, typename AwaitNext>
    __device__ void multiply(ScoreGradients& gradients, GradientSums& sums, int tile,
                             float* dq_accumulator, KeyGradient& dk, ValueGradient& dv,
                             AwaitNext await_next) {
        const int stage = static_cast<int>(step % 2);
        const unsigned parity = step / 2 % 2;
        const unsigned base = shared.base;
        const unsigned word = operand_word(base, kQueryPanel);
        const unsigned rows = word + warpgroup * (64 * kRowBytes >> 4);
        const unsigned query_word = word + stage * (kPanels * kQueryPanel >> 4);
        const unsigned d_out_word = word + stage * (kValuePanels * kQueryPanel >> 4);
        const RowStatistics statistics{base + kLayout.statistics + stage * kStatisticBytes};
        Scores scores, d_scores;
        Fragments p, d_fragments;
        QuerySums query_sums{};
        VisibleBits visible_bits;
        QueryGradient dq;
        gradients.use_stage(shared, stage, 0);
        const int bias_stage = static_cast<int>(step % kBiasRing);
        gradients.use_biases(base + kLayout.biases + bias_stage * kBiasTileBytes,
                             base + kLayout.query_gradient + warpgroup * kPartBytes,
                             64 * warpgroup + 16 * warp);
        const int tile_query = tile * mod::kQueryTile;
        const ScoreStep of_scores{shared,      warpgroup,  step,        tile_query, statistics,
                                  gradients,   sums,       scores,      d_scores,   p,
                                  d_fragments, query_sums, visible_bits};
        const StepOfQueries<kHalves, AwaitNext> parts{
            of_scores, *this, dk, dv, dq, stage, tile, query_word, dq_accumulator, await_next};
        // S^T = K Q^T
        fence_wgmma();
        issue_scores<kLayout.keys, kLayout.queries, mod::kHeadDim, kKeyPanelColumns>(
            scores, rows + Shared::slot_words(key_tiles.slot()), query_word);
        commit_wgmma();
        MaskOrder::between_products(parts);
        // dP^T = V d_out^T
        key_tiles.wait_for_values(shared, step);
        shared.d_out_full(stage).wait(parity);
        const bool has_references = gradients.has_references(statistics);
        fence_wgmma();
        issue_scores<kLayout.values, kLayout.d_out, mod::kHeadDimV>(d_scores, rows, d_out_word);
        commit_wgmma();
        MaskOrder::under_both_products(parts);
        CopiedBias::wait(shared, step);
        ScoreOrder::before_dv(parts, has_references);
        CopiedBias::release_after_p(shared, step);
        ValueProduct::issue<kLayout.d_out>(dv, p, d_out_word);
        ScoreOrder::under_dv(parts);
        store_for_queries(d_fragments, stage);
        // Elements of entries are no operands.
        if constexpr (!(kAreAlone && kSumsEntries)) publish_shared();
        BiasGradient::hand_over(shared, warpgroup);
        ProductOrder<kOwner>::multiply(parts);
        gradients.finish_tile(sums, tile_query);
    }

    // Frees the stage of queries; each thread arrives, since each has read lse and delta there.
    __device__ void release_queries(int stage) const { shared.queries_empty(stage).arrive(); }

    // Waits for the product of dv and frees the stage of d_out, which only products read: one
    // arrival for each warp.
    template <int kPending>
    __device__ void finish_values(ValueGradient& dv, Fragments& p, int stage) const {
        ValueProduct::wait<kPending>(dv, p);
        if (lane() == 0) shared.d_out_empty(stage).arrive();
    }

    // Stores dS in shared memory, for dq and for warps that sum gradients over tiles.
    __device__ void store_for_queries(const Fragments& d_scores, int stage) const {
        key_tiles.wait_for_d_scores(shared, step);
        DScoresRing::wait(shared, step);
        if constexpr (kShape.stores_d_scores())
            store_by_queries(shared.base + kLayout.d_scores +
                                 stage % mod::kDScoresStages * kDScoresBytes +
                                 warpgroup * kQueryPanel,
                             d_scores, warp, lane());
    }

    // The parts of a step, one tile of queries. MaskOrder, ScoreOrder and ProductOrder call them in
    // the order that a program needs.
    template <KeyHalves kHalves, typename AwaitNext> struct StepOfQueries : ScoreStep {
        const Consumer& consumer;
        KeyGradient& dk;
        ValueGradient& dv;
        QueryGradient& dq;
        const int stage, tile;
        const unsigned query_word;
        float* const dq_accumulator;
        const AwaitNext& await_next;

        __device__ bool takes_query_gradient() const { return consumer.takes_query_gradient(); }
        __device__ void issue_dq() const {
            fence_wgmma();
            ProductOver<kHalves>::multiply(consumer.piece(), dq, stage, warpgroup);
            commit_wgmma();
        }
        __device__ void issue_dk() const {
            pin(dk);
            pin(d_fragments);
            fence_wgmma();
            issue_sums<kLayout.queries>(dk, d_fragments, query_word);
            commit_wgmma();
        }
        __device__ void finish_dk() const {
            pin(dk);
            pin(d_fragments);
            consumer.release_queries(stage);
        }
        __device__ void finish_dq() const {
            QueryPiece::wait_for_dq(dq);
            DScoresRing::release(shared);
            DqWriter::write(consumer.piece(), dq, step, dq_accumulator, tile);
        }
        __device__ void release_tile() const {
            DScoresRing::release(shared);
            consumer.release_queries(stage);
        }
        template <int kPending> __device__ void finish_dv() const {
            consumer.finish_values<kPending>(dv, p, stage);
        }
        __device__ void hand_over_second_half() const {
            BiasGradient::hand_over_second_half(shared, warpgroup, step, gradients.biases(),
                                                d_scores);
        }
        __device__ void add_entries() const { sums.add(shared, step, d_fragments, gradients); }
        __device__ QuerySummation summation() const { return gradients.summation(shared); }
        __device__ void hand_over_sums() const {
            summation().hand_over(query_sums, step, tile_query);
        }
        __device__ void add_sums() const { summation().add_gathered(step, tile_query); }
        __device__ void add_sums_alternately() const {
            if (consumer.adds_query_sums()) add_sums();
        }
    };

    // Goes through all queries that see one tile of keys, and stores dk and dv.
    __device__ void visit_queries() {
        KeyGradient dk;
        ValueGradient dv;
        clear(dk);
        clear(dv);
        SequenceEnds::clear_keys(*this);
        GradientSums::clear(shared);
        visit_heads<Select<kSaves.heads_again, FindsAgain, HeadLoop>>(
            attention, arguments, keys(), [&](const HeadPlace& place, TileRange tiles) {
                TileLength length = keys().length(attention);
                ScoreGradients gradients(attention, arguments, place, length, keys().first_kv,
                                         warp_key(), lane());
                GradientSums sums{};
                float* const dq_accumulator =
                    attention.dq_accumulator +
                    PaddedRows(attention, length).first(place) * mod::kHeadDim;
                // Kept in registers: compilers would compute them again between two tiles' MMAs.
                int left = computed_again(tiles.end - tiles.begin);
                int tile = computed_again(tile_in_order(tiles, tiles.begin));
                if (left > 0) {
                    key_tiles.wait_for_keys(shared, step);
                    await(place, tile, step);
                }
#pragma unroll 1
                for (; left > 0; --left, tile += kTileStep)
                    consume(gradients, sums, place, tile, left == 1, dq_accumulator, dk, dv);
                gradients.flush(sums);
                sums.flush(shared, gradients);
            });
        key_tiles.release_values(shared, step, [&] { return lane(); });
        if constexpr (!kAreAlone) {
            const WarpOutput output{attention, maps, shared, warpgroup, warp, lane()};
            output.store_values(keys(), dv);
            synchronize(kLastMmaBarrier, 128 * kConsumers);
            output.store_keys(keys(), key_tiles.slot(), dk);
        }
    }
};

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flexc_backward_sm90(const __grid_constant__ KernelArguments attention,
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
        serve_consumers(attention, arguments, maps, shared, keys, warp);
    } else {
        claim_registers<kConsumerRegisters>();
        Consumer consumer{
            attention,      arguments,    maps,     shared,
            KeyTiles(keys), warp / 4 - 1, warp % 4, static_cast<int>(threadIdx.x) % 32};
        consumer.key_tiles.visit(shared, consumer.step, [&] { consumer.visit_queries(); });
    }
}
