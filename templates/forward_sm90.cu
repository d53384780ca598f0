// Attention, forward, for Hopper: persistent, warp-specialized blocks, each of which computes tiles
// of kQueryTile rows of one head, one after another.
//
// One producer thread loads queries, keys and values through TMA: tiles of keys from the last to
// the first, or starting where most is added to scores. Keys that TMA cannot load, or loads slowly,
// are copied by other threads of the producer warpgroup. Two to four consumer warpgroups of 64
// rows each compute S = Q K^T from shared memory, the softmax in registers, and O += P V with P
// from registers. As in FlashAttention-3, PV of one tile of keys overlaps the softmax of the next,
// and warpgroups take turns (ping-pong), so that one issues MMAs while another computes softmax.
#include "mod.cuh"

#include "common/place.cuh"
#include "sm90/forward_features.cuh"
#include "sm90/forward_layout.cuh"
#include "sm90/forward_lengths.cuh"
#include "sm90/forward_output.cuh"
#include "sm90/forward_producer.cuh"
#include "sm90/forward_sequence_ends.cuh"
#include "sm90/logits.cuh"
#include "sm90/ping_pong.cuh"
#include "sm90/softmax.cuh"
#include "sm90/tabulate_distances.cuh"
#include "sm90/tabulate_keys.cuh"

using namespace sm90;
using mod::Element;

namespace {

extern __shared__ __align__(1024) unsigned char shared_memory[];

__device__ void issue_output(Output& output, const P& p, Operand value) {
    mod::mma_pv(output, p, value.low);
}

// A thread of a consumer warpgroup, with its position in each ring of stages.
struct Consumer {
    const AttentionArguments& attention;
    const mod::Arguments& arguments;
    const ForwardTensorMaps& maps;
    const Shared& shared;
    const ConsumerThread thread;
    const PingPongOrder ping_pong;
    Position<Queries> query{};
    Position<Keys> key{};
    Position<Values> value{};
    Biases bias{};
    Index2dRows index_2d_rows{shared, thread};
    AddendStep addend_step{shared, thread};
    TabulatedValues tabulated{};
    TableStages tables{};
    KeyKinds key_kinds{};

    // Frees a stage that only MMAs have read, with one arrival for each warp.
    __device__ void release(Barrier empty) const {
        if (thread.lane == 0) empty.arrive();
    }
    __device__ void release_key() {
        release(shared.keys.empty(key.stage));
        key.advance();
    }
    // Frees the stage of keys once QK of it is done.
    __device__ void finish_key(Scores& scores) {
        key_kinds.add_apart(scores, shared.keys.at(key.stage), shared.queries.at(query.stage),
                            thread);
        release_key();
    }
    __device__ void release_value() {
        release(shared.values.empty(value.stage));
        value.advance();
    }
    __device__ Operand key_operand() const {
        CopiedKeys::publish();
        return {shared.keys.at(key.stage), 16};
    }
    __device__ void issue_scores(Scores& scores, Operand queries) const {
        mod::mma_qk<Logits::kStartsWithBias || KeyKinds::kComeBeforeProducts>(
            scores, queries.low, key_operand().low, addend_step.of_queries(key.stage),
            addend_step.of_keys(key.stage));
    }
    __device__ unsigned value_address() const { return shared.values.at(value.stage); }
    __device__ Operand value_operand() const {
        CopiedKeys::publish();
        return {value_address(), kKeyPanel};
    }
    __device__ void wait_for_key() const { shared.keys.full(key.stage).wait(key.parity); }
    __device__ void wait_for_value() const { shared.values.full(value.stage).wait(value.parity); }

    // Returns the tile of keys that is in the stage. next: its number, if tiles are a range.
    __device__ MaskTile key_block(int next) const { return KeyBlocks::at(shared, key.stage, next); }

    // Computes QK of a tile of keys, with no other product under way.
    __device__ MaskTile compute_scores(Scores& scores, Operand queries, Logits& logits, int next) {
        wait_for_key();
        const MaskTile block = key_block(next);
        key_kinds.start(scores, shared, key, thread);
        issue_scores(scores, queries);
        find_hidden(logits, block);
        if (kPreparesEarly) prepare_logits(logits, block.index * mod::kKeyStep);
        wait_for_wgmma<0>();
        pin(scores);
        finish_key(scores);
        if (!kPreparesEarly) prepare_logits(logits, block.index * mod::kKeyStep);
        return block;
    }
    __device__ void find_hidden(Logits& logits, MaskTile block) const {
        logits.find_hidden(block.index * mod::kKeyStep, block.is_full);
    }
    // Loads what is added to the products. Called while QK runs where there are registers to spare,
    // else after it.
    __device__ void prepare_logits(Logits& logits, int first_key) {
        logits.prepare(first_key);
        tabulated.find(logits, shared, thread);
        bias.load(logits, shared, thread, first_key);
        index_2d_rows.load(logits, shared, thread);
    }
    // Adds what was loaded, so that products become logits.
    __device__ void apply(Logits& logits, Scores& scores, int first_key) {
        logits.apply(scores, first_key);
        tabulated.release(shared);
        bias.release_after_logits(shared);
    }
    __device__ void await_output(Output& output, P& p) const {
        wait_for_wgmma<0>();
        pin(output);
        pin(p);
    }
    // Waits for PV and frees the stage of values.
    __device__ void finish_output(Output& output, P& p) {
        await_output(output, p);
        release_value();
    }

    // Visits the first tile of keys, whose softmax no PV runs under. Returns it.
    __device__ MaskTile visit_first(Scores& scores, P& p, Operand queries, Logits& logits,
                                    Softmax& softmax, int last) {
        const MaskTile block = compute_scores(scores, queries, logits, last);
        apply(logits, scores, block.index * mod::kKeyStep);
        softmax.compute_p<kNever>(
            scores, logits, true, [](float) {}, [](const float(&)[2]) {}, packed_into(p));
        return block;
    }

    // Visits the tiles of keys; PV of one runs while the softmax of the next is computed.
    __device__ void attend_overlapped(const Task& task, const HeadPlace& place,
                                      const SequenceLength& length, Operand queries, Logits& logits,
                                      Softmax& softmax, Output& output) {
        constexpr bool kFirstInLoop = mod::ForwardSchedule::kVisitsFirstInLoop;
        if (task.begin == task.end) return;
        const int last = Skips::last_block(*this, task, place);
        P p;
        Scores scores;
        KeyOrder order(task.begin, task.end);
        int newest = 0; // newest tile of keys
        bias.start(scores, logits, shared, thread, last);
        // The tile in which the keys end comes first in a range, and last in a block mask.
        const auto clear_values = [&] {
            if constexpr (!mod::Mask::kHasBlockMask)
                SequenceEnds::clear_values(*this, length, last);
        };
        if constexpr (kFirstInLoop) {
            wait_for_key();
            key_kinds.start(scores, shared, key, thread);
        } else {
            newest = visit_first(scores, p, queries, logits, softmax, last).index;
            if (task.begin < last) bias.start(scores, logits, shared, thread, order.after(last));
            key_kinds.start_next(scores, shared, key, thread, task.begin < last);
            clear_values();
        }
        const auto rescale = [&](const float(&shrink)[2]) { multiply_rows(output, shrink); };
        // Says, too, that the tile is the first one: of that, nothing else has to be kept.
        constexpr unsigned kFirst = 2;
        unsigned key_is_there = kFirstInLoop ? kFirst : 0;
#pragma unroll 1
        for (int next = kFirstInLoop ? last : last - 1; next >= task.begin; --next) {
            const bool is_first = kFirstInLoop && key_is_there == kFirst; // there is no PV yet
            if (!is_first) order.advance();
            if (key_is_there == 0) wait_for_key();
            const MaskTile block = key_block(is_first ? last : order.tile(next));
            newest = block.index;
            if (!is_first) ping_pong.wait(mod::PingPong::mma);
            issue_scores(scores, queries);
            if (is_first) {
                commit_wgmma(); // a group of its own, as PV is
            } else {
                wait_for_value();
                issue_output(output, p, value_operand());
                ping_pong.signal(mod::PingPong::mma);
            }
            find_hidden(logits, block);
            if (kPreparesEarly) prepare_logits(logits, block.index * mod::kKeyStep);
            wait_for_wgmma<1>();
            pin(scores);
            finish_key(scores);

            if (!is_first) ping_pong.wait(mod::PingPong::softmax);
            if (!kPreparesEarly) prepare_logits(logits, block.index * mod::kKeyStep);
            apply(logits, scores, block.index * mod::kKeyStep);
            const bool has_more = next > task.begin;
            const auto finish = [&](float done) {
                complete(done, shared.spare);
                softmax.follow(done);
                if (!is_first) ping_pong.signal(mod::PingPong::softmax);
                await_output(output, p);
                if (!is_first) release_value();
                // Asks early, as the answer takes as long as several exponentials.
                key_is_there = shared.keys.full(key.stage).is_complete(key.parity);
                bias.await_next(logits, shared, order.after(next), has_more);
            };
            softmax.compute_p<mod::ForwardSchedule::kRescalesAfter>(
                scores, logits, is_first, finish, rescale, packed_into(p));
            bias.start_next(scores, logits, shared, thread, order, next, has_more);
            key_kinds.start_next(scores, shared, key, thread, has_more);
            softmax.rescale_after(rescale);
            if (is_first) clear_values();
        }
        bias.finish(shared);
        wait_for_value();
        if constexpr (mod::Mask::kHasBlockMask) SequenceEnds::clear_values(*this, length, newest);
        issue_output(output, p, value_operand());
        finish_output(output, p);
    }

    // Visits the tiles of keys with one product at a time, which takes fewer registers.
    __device__ void attend_in_order(const Task& task, const SequenceLength& length, Operand queries,
                                    Logits& logits, Softmax& softmax, Output& output) {
        const auto rescale = [&](const float(&shrink)[2]) { multiply_rows(output, shrink); };
        KeyOrder order(task.begin, task.end);
#pragma unroll 1
        for (int next = task.end - 1; next >= task.begin; --next) {
            Scores scores;
            P p;
            bias.start(scores, logits, shared, thread, order.tile(next));
            wait_for_key();
            const MaskTile block = key_block(order.tile(next));
            order.advance();
            key_kinds.start(scores, shared, key, thread);
            ping_pong.wait(mod::PingPong::mma);
            issue_scores(scores, queries);
            ping_pong.signal(mod::PingPong::mma);
            find_hidden(logits, block);
            if (kPreparesEarly) prepare_logits(logits, block.index * mod::kKeyStep);
            wait_for_wgmma<0>();
            pin(scores);
            finish_key(scores);
            ping_pong.wait(mod::PingPong::softmax);
            if (!kPreparesEarly) prepare_logits(logits, block.index * mod::kKeyStep);
            apply(logits, scores, block.index * mod::kKeyStep);
            softmax.compute_p<kNever>(
                scores, logits, next + 1 == task.end, [](float) {}, rescale, packed_into(p));
            ping_pong.signal(mod::PingPong::softmax);
            softmax.rescale_after(rescale);
            wait_for_value();
            SequenceEnds::clear_values(*this, length, block.index);
            issue_output(output, p, value_operand());
            finish_output(output, p);
        }
        bias.finish(shared);
    }

    // Computes one tile of queries. Returns false after the last.
    __device__ bool consume() {
        shared.queries.full(query.stage).wait(query.parity);
        read_again(attention);
        const Task task = Task::load_by_warp(shared.task(query.stage));
        if (task.is_none()) return false;
        const int first_row = task.first_row + 64 * thread.warpgroup;
        if (Skips::skips_tile(*this, task, first_row)) {
            tables.release(shared);
            release_queries();
            return true;
        }
        const HeadPlace place(attention, arguments, task.b, task.h, task.h_kv, task.low, task.high);
        const int warp_row = first_row + 16 * thread.warp;
        const unsigned queries = shared.queries.at(query.stage) + thread.warpgroup * 64 * kRowBytes;
        const SequenceLength length = TaskLengths::load(attention, shared, query.stage, task.b);
        SequenceEnds::clear_queries(*this, length, first_row, queries);
        key_kinds.store_queries(arguments, place, length, attention.scale, warp_row, shared,
                                query.stage, thread);
        AddendStep::store_queries(attention, arguments, place, first_row, shared, thread);
        const unsigned in_tables = tables.wait(shared);
        key_kinds.find_copies(in_tables);
        Logits logits(attention, arguments, place, length, warp_row, thread.lane, in_tables);
        Softmax softmax;
        Output output;
#pragma unroll
        for (int i = 0; i < kOutputs; ++i)
            output[i] = 0;
        if constexpr (mod::ForwardSchedule::kOverlaps)
            attend_overlapped(task, place, length, Operand(queries, 16), logits, softmax, output);
        else
            attend_in_order(task, length, Operand(queries, 16), logits, softmax, output);
        tables.release(shared);
        store_tile(place, warp_row, logits, softmax, output, queries);
        release_queries();
        return true;
    }
    // Stores the output through the warp's own rows of the stage of queries, which all of the
    // warpgroup have read by then.
    __device__ void store_tile(const HeadPlace& place, int warp_row, const Logits& logits,
                               const Softmax& softmax, Output& output, unsigned queries) const {
        // Loaded again, as registers are short in the loop.
        const SequenceLength length = TaskLengths::load(attention, shared, query.stage, place.b);
        const int row = warp_row + thread.lane / 4;
        normalise(attention, arguments, place, length, row, logits, softmax, output);
        if (attention.o_flags & kOutputF32) {
            store_floats(attention, place, length, row, output);
            return;
        }
        synchronize(1 + kConsumers + thread.warpgroup, 128);
        const unsigned staged = queries + 16 * thread.warp * kRowBytes;
        const int first_row = static_cast<int>(length.first_query_row()) + warp_row;
        stage(output, staged);
        const int rows = mod::Layouts::kAreDense ? 16 : uniform(length.query_rows() - warp_row);
        if (rows >= 16)
            store_staged(maps.o, {length.entry(), place.h, first_row, 0}, staged);
        else
            copy_rows<mod::kHeadDimV, kQueryPanel>(attention.o, place.h, first_row, rows, staged);
    }
    __device__ void release_queries() {
        shared.queries.empty(query.stage).arrive();
        query.advance();
    }
};

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flexc_forward_sm90(const __grid_constant__ KernelArguments attention,
                       const __grid_constant__ mod::Arguments arguments,
                       const __grid_constant__ ForwardTensorMaps maps, int* queue) {
    const Shared shared(shared_address(shared_memory));
    const int warpgroup = uniform(static_cast<int>(threadIdx.x) / 128);
    const int bias_producers = Biases::producers(maps);
    if (threadIdx.x == 0) initialise_barriers(shared, bias_producers);
    AddendStep::store_unit(attention, shared);
    __syncthreads();
    if (warpgroup == 0) {
        release_registers_to<kProducerRegisters>();
        if (threadIdx.x == 0) produce(attention, arguments, maps, queue, shared);
        CopiedKeys::produce(attention, arguments, shared);
        Biases::produce(attention, arguments, maps, shared, bias_producers);
        Index2dRows::produce(attention, arguments, shared);
        KeyKinds::produce(attention, arguments, shared);
        TableStages::produce(attention, arguments, shared);
    } else {
        claim_registers<kConsumerRegisters>();
        const ConsumerThread thread{warpgroup - 1, static_cast<int>(threadIdx.x) % 32,
                                    static_cast<int>(threadIdx.x) / 32 % 4};
        Consumer consumer{attention, arguments, maps,
                          shared,    thread,    PingPongOrder(thread.warpgroup)};
        while (consumer.consume()) {
        }
    }
}

#ifdef FLEXC_TABULATES
// Computes kinds of pairs, and tabulated vectors by distance and by key. Launched before the
// forward, if it has any.
extern "C" __global__ void __launch_bounds__(kTabulatedStep)
    flexc_forward_tabulate_sm90(const __grid_constant__ KernelArguments attention,
                                const __grid_constant__ mod::Arguments arguments) {
    int block = static_cast<int>(blockIdx.x);
    if constexpr (kHasPairKinds) {
        if (block < pair_tiles(attention)) {
            tabulate_pairs(attention, arguments, block);
            return;
        }
        block -= pair_tiles(attention);
    }
    const int of_distances =
        mod::TabulatedVectors::kByDistance == 0
            ? 0
            : vector_heads(attention) * (distance_count(attention) / kTabulatedStep);
    if (block < of_distances)
        tabulate_distances(attention, arguments, block, DistanceUnits{attention.scale});
    else
        tabulate_keys(attention, arguments, block - of_distances);
}
#endif
