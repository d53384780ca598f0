// Attention, forward, for Hopper: blocks that stay on their multiprocessor and compute one tile of
// kQueryTile rows of one head after another.
//
// One thread loads queries, keys and values through the copy engine, keys last first. Two or three
// warpgroups of 64 rows each multiply: scores = Q K' from shared memory, softmax in registers,
// output += weights V with the weights from registers, where they are in the layout that the
// instruction asks for. The output of one block of keys is computed under the softmax of the next,
// and warpgroups take turns, so that one multiplies while another exponentiates.
#include "mod.cuh"

#include "common/place.cuh"
#include "sm90/expand_distances.cuh"
#include "sm90/expand_keys.cuh"
#include "sm90/forward_biases.cuh"
#include "sm90/forward_grid.cuh"
#include "sm90/forward_layout.cuh"
#include "sm90/forward_output.cuh"
#include "sm90/forward_producer.cuh"
#include "sm90/forward_turn.cuh"
#include "sm90/logits.cuh"
#include "sm90/softmax.cuh"

using namespace sm90;
using mod::Element;

namespace {

extern __shared__ __align__(1024) unsigned char shared_memory[];

__device__ void issue_output(Output& output, const Weights& weights, Operand value) {
    mod::multiply_output(output, weights, value.low);
}

struct Consumer {
    const AttentionArguments& attention;
    const mod::Arguments& arguments;
    const ForwardMaps& maps;
    const Shared& shared;
    const int warpgroup, lane, warp; // among the consumers, in the warp, in the warpgroup
    const Turn turn;
    const unsigned grid_rows_low, grid_unit_low; // of the operands, without a swizzle
    Position<Queries> query{};
    Position<Keys> key{};
    Position<Values> value{};
    Position<Biases> bias{};
    Position<GridRows> grid_rows{};
    Position<TermSlices> term{};

    // Of what products alone have read: one arrival for each warp.
    __device__ void release(Barrier empty) const {
        if (lane == 0) empty.arrive();
    }
    __device__ void release_key() {
        release(shared.keys.empty(key.stage));
        key.advance();
    }
    __device__ void release_value() {
        release(shared.values.empty(value.stage));
        value.advance();
    }
    __device__ Operand key_operand() const { return {shared.keys.at(key.stage), 16}; }
    __device__ void issue_scores(Scores& scores, Operand queries) const {
        mod::multiply_scores<Logits::kStartsWithBias>(
            scores, queries.low, key_operand().low,
            grid_rows_low + key.stage * (GridRows::kBytes >> 4), grid_unit_low);
    }
    __device__ Operand value_operand() const { return {shared.values.at(value.stage), kKeyPanel}; }
    __device__ void wait_for_key() const { shared.keys.full(key.stage).wait(key.parity); }
    __device__ void wait_for_value() const { shared.values.full(value.stage).wait(value.parity); }

    // Of the keys that have arrived: the next of a range, or what a map chose.
    __device__ MappedTile key_block(int next) const {
        if constexpr (mod::kHasMap) return MappedTile::load(shared.key_block(key.stage));
        return {next, false};
    }

    // Scores of a block of keys, alone.
    __device__ MappedTile compute_scores(Scores& scores, Operand queries, Logits& logits,
                                         int next) {
        wait_for_key();
        const MappedTile block = key_block(next);
        issue_scores(scores, queries);
        look(logits, block);
        if (kPreparesEarly) prepare_logits(logits, block.index * mod::kKeyTile);
        wait_for_products<0>();
        pin(scores);
        release_key();
        if (!kPreparesEarly) prepare_logits(logits, block.index * mod::kKeyTile);
        return block;
    }
    __device__ void look(Logits& logits, MappedTile block) const {
        logits.look(block.index * mod::kKeyTile, block.is_full);
    }
    // What the next logits need beside their products, which it runs under where there are
    // registers to spare.
    __device__ void prepare_logits(Logits& logits, int first_key) {
        logits.prepare(first_key);
        if constexpr (kHasTerms) {
            shared.terms.full(term.stage).wait(term.parity);
            logits.find_terms(shared.terms.at(term.stage), 64 * warpgroup + 16 * warp + lane / 4);
        }
        if constexpr (mod::kReadsBias && !Logits::kStartsWithBias) {
            wait_for_biases();
            logits.load_biases(biases());
            release_biases();
        }
        if constexpr (kLoadsGridRows) {
            shared.grid_rows.full(grid_rows.stage).wait(grid_rows.parity);
            logits.load_grid_rows(shared.grid_rows.at(grid_rows.stage) +
                                  4 * (64 * warpgroup + 16 * warp + lane / 4));
            shared.grid_rows.empty(grid_rows.stage).arrive();
            grid_rows.advance();
        }
    }
    __device__ void wait_for_biases() const { shared.biases.full(bias.stage).wait(bias.parity); }
    __device__ unsigned biases() const {
        return shared.biases.at(bias.stage) + (64 * warpgroup + 16 * warp) * kBiasRowBytes;
    }
    __device__ void release_biases() {
        shared.biases.empty(bias.stage).arrive();
        bias.advance();
    }
    // What the products of the first block of keys are added to, where anything is.
    __device__ void start(Scores& scores, Logits& logits, int block) {
        if constexpr (Logits::kStartsWithBias) {
            wait_for_biases();
            logits.start(scores, biases(), block * mod::kKeyTile);
            release_biases();
        }
    }
    // Products become logits.
    __device__ void apply(Logits& logits, Scores& scores, int first_key) {
        logits.apply(scores, first_key);
        if constexpr (kHasTerms) {
            shared.terms.empty(term.stage).arrive();
            term.advance();
        }
    }
    // The output that is under way, complete.
    __device__ void finish_output(Output& output, Weights& weights) {
        wait_for_products<0>();
        pin(output);
        pin(weights);
        release_value();
    }

    __device__ void pass_keys() {
        wait_for_key();
        __syncwarp();
        release_key();
        wait_for_value();
        __syncwarp();
        release_value();
    }
    // All of a tile that has no rows for this warpgroup.
    __device__ void pass_tile(const Task& task) {
#pragma unroll 1
        for (int next = task.begin; next < task.end; ++next) {
            pass_keys();
            // Products that are under no softmax take no turn.
            if (!mod::kOverlaps || next > task.begin) turn.skip();
        }
    }
    // Of a range of keys, only later rows of the tile may see the last: a warpgroup that sees
    // nothing of them lets them pass. The last tile that is left, of at least one.
    __device__ int pass_hidden_keys(const Task& task, const HeadPlace& place) {
        int last = task.end - 1;
        if constexpr (kKeysMayPass && mod::kHasBand && !mod::kHasMap) {
            const int first_row = task.first_row + 64 * warpgroup;
            const int last_key = place.keys_of(first_row, first_row + 63).last;
#pragma unroll 1
            for (; last > task.begin && last * mod::kKeyTile > last_key; --last) {
                pass_keys();
                turn.skip();
            }
        }
        return last;
    }

    // The output of one block of keys is computed under the softmax of the next.
    __device__ void attend_overlapped(const Task& task, const HeadPlace& place, Operand queries,
                                      Logits& logits, Softmax& softmax, Output& output) {
        if (task.begin == task.end) return;
        const int last = pass_hidden_keys(task, place);
        Weights weights;
        Scores scores;
        start(scores, logits, last);
        {
            const MappedTile block = compute_scores(scores, queries, logits, last);
            apply(logits, scores, block.index * mod::kKeyTile);
            softmax.weigh<Softmax::kNever>(
                scores, logits, true, [](float) {}, [] {}, packed_into(weights));
        }
        if (task.begin < last) start(scores, logits, last - 1);
        unsigned key_is_there = 0;
#pragma unroll 1
        for (int next = last - 1; next >= task.begin; --next) {
            if (key_is_there == 0) wait_for_key();
            const MappedTile block = key_block(next);
            turn.take(mod::Turns::products);
            issue_scores(scores, queries);
            wait_for_value();
            issue_output(output, weights, value_operand());
            turn.pass(mod::Turns::products);
            look(logits, block);
            if (kPreparesEarly) prepare_logits(logits, block.index * mod::kKeyTile);
            wait_for_products<1>();
            pin(scores);
            release_key();

            turn.take(mod::Turns::softmax);
            if (!kPreparesEarly) prepare_logits(logits, block.index * mod::kKeyTile);
            apply(logits, scores, block.index * mod::kKeyTile);
            const bool has_more = next > task.begin;
            const auto finish = [&](float settled) {
                settle(settled, shared.spare);
                softmax.follow(settled);
                turn.pass(mod::Turns::softmax);
                finish_output(output, weights);
                // The answer takes as long as several exponents.
                key_is_there = shared.keys.full(key.stage).is_complete(key.parity);
                if (Logits::kStartsWithBias && has_more) wait_for_biases();
            };
            softmax.weigh<mod::kSettlesAfter>(
                scores, logits, false, finish, [&] { multiply_rows(output, softmax.shrink); },
                packed_into(weights));
            if constexpr (Logits::kStartsWithBias) {
                // After the last block of keys comes nothing; what is read then does not matter,
                // and a branch would take it out of the exponents' shadow.
                const unsigned from = has_more ? biases() : shared.keys.at(0);
                logits.start(scores, from, (has_more ? next - 1 : next) * mod::kKeyTile);
                pin(scores);
                if (has_more) release_biases();
            }
            if (softmax.shrinks()) multiply_rows(output, softmax.shrink);
        }
        wait_for_value();
        issue_output(output, weights, value_operand());
        finish_output(output, weights);
    }

    // One product after the other, in fewer registers.
    __device__ void attend_in_order(const Task& task, Operand queries, Logits& logits,
                                    Softmax& softmax, Output& output) {
#pragma unroll 1
        for (int next = task.end - 1; next >= task.begin; --next) {
            Scores scores;
            Weights weights;
            start(scores, logits, next);
            wait_for_key();
            const MappedTile block = key_block(next);
            turn.take(mod::Turns::products);
            issue_scores(scores, queries);
            turn.pass(mod::Turns::products);
            look(logits, block);
            if (kPreparesEarly) prepare_logits(logits, block.index * mod::kKeyTile);
            wait_for_products<0>();
            pin(scores);
            release_key();
            turn.take(mod::Turns::softmax);
            if (!kPreparesEarly) prepare_logits(logits, block.index * mod::kKeyTile);
            apply(logits, scores, block.index * mod::kKeyTile);
            softmax.weigh<Softmax::kNever>(
                scores, logits, next + 1 == task.end, [](float) {},
                [&] { multiply_rows(output, softmax.shrink); }, packed_into(weights));
            turn.pass(mod::Turns::softmax);
            if (softmax.shrinks()) multiply_rows(output, softmax.shrink);
            wait_for_value();
            issue_output(output, weights, value_operand());
            finish_output(output, weights);
        }
    }

    // False after the last tile.
    __device__ bool consume() {
        shared.queries.full(query.stage).wait(query.parity);
        read_again(attention);
        const Task task = Task::load(shared.task(query.stage));
        if (task.is_none()) return false;
        const int first_row = task.first_row + 64 * warpgroup;
        if (kKeysMayPass && first_row >= task.end_row) {
            pass_tile(task);
            leave_queries();
            return true;
        }
        const HeadPlace place(attention, arguments, task.b, task.h, task.h_kv, task.low, task.high);
        const int warp_row = first_row + 16 * warp;
        const unsigned queries = shared.queries.at(query.stage) + warpgroup * 64 * kRowBytes;
        Logits logits(attention, arguments, place, warp_row, lane);
        Softmax softmax;
        Output output;
#pragma unroll
        for (int i = 0; i < kOutputs; ++i)
            output[i] = 0;
        if constexpr (mod::kOverlaps)
            attend_overlapped(task, place, Operand(queries, 16), logits, softmax, output);
        else
            attend_in_order(task, Operand(queries, 16), logits, softmax, output);
        normalise(attention, place, warp_row + lane / 4, logits, softmax, output);
        if (attention.o_flags & kOutputF32) {
            store_floats(attention, place, warp_row + lane / 4, output);
        } else {
            // Through the warp's own rows of the queries, when all of the warpgroup have read them.
            synchronize(1 + kConsumers + warpgroup, 128);
            store(maps.o, {task.b, task.h, warp_row, 0}, queries + 16 * warp * kRowBytes, output);
        }
        leave_queries();
        return true;
    }
    __device__ void leave_queries() {
        shared.queries.empty(query.stage).arrive();
        query.advance();
    }
};

// The low word of an operand for rows of the grid, which the compiler would compute again for every
// product otherwise.
__device__ unsigned held(unsigned address) {
    if constexpr (!mod::kMultipliesGridRows) return 0;
    return static_cast<unsigned>(uniform(static_cast<int>(Operand(address, 0).low)));
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flexc_forward_sm90(const __grid_constant__ AttentionArguments attention,
                       const __grid_constant__ mod::Arguments arguments,
                       const __grid_constant__ ForwardMaps maps, int* queue) {
    const Shared shared(shared_address(shared_memory));
    const int warpgroup = uniform(static_cast<int>(threadIdx.x) / 128);
    const int bias_threads = maps.biases_from == nullptr ? kBiasThreads : 1;
    if (threadIdx.x == 0) shared.initialise(bias_threads);
    if constexpr (mod::kMultipliesGridRows) {
        if (threadIdx.x < 8) {
            store_grid_unit(shared.grid_unit + kGridRowBytes * threadIdx.x, attention.scale);
            publish_shared();
        }
    }
    __syncthreads();
    if (warpgroup == 0) {
        release_registers_to<kProducerRegisters>();
        if (threadIdx.x == 0) produce(attention, arguments, maps, queue, shared);
        if constexpr (mod::kReadsBias)
            if (threadIdx.x >= 64 && threadIdx.x < 64 + bias_threads)
                produce_biases(attention, arguments, maps, shared,
                               static_cast<int>(threadIdx.x) - 64);
        if constexpr (kGridRows > 0)
            if (threadIdx.x >= 128 - kGridThreads)
                produce_grid_rows(attention, arguments, shared,
                                  static_cast<int>(threadIdx.x) - (128 - kGridThreads));
    } else {
        claim_registers<kConsumerRegisters>();
        const int index = warpgroup - 1;
        Consumer consumer{attention,
                          arguments,
                          maps,
                          shared,
                          index,
                          static_cast<int>(threadIdx.x) % 32,
                          static_cast<int>(threadIdx.x) / 32 % 4,
                          Turn(index),
                          held(shared.grid_rows.at(0) + 64 * index * kGridRowBytes),
                          held(shared.grid_unit)};
        while (consumer.consume()) {
        }
    }
}

#ifdef FLEXC_EXPANDS
// Before it, where the program has anything for it.
extern "C" __global__ void __launch_bounds__(kExpandedStep)
    flexc_forward_expand_sm90(const __grid_constant__ AttentionArguments attention,
                              const __grid_constant__ mod::Arguments arguments) {
    const int block = static_cast<int>(blockIdx.x);
    const int of_distances =
        mod::kDistanceValues == 0
            ? 0
            : vector_heads(attention) * (distance_count(attention) / kExpandedStep);
    if (block < of_distances)
        expand_distances(attention, arguments, block);
    else
        expand_keys(attention, arguments, block - of_distances);
}
#endif
