// Attention, forward, for Hopper: blocks that stay on their multiprocessor and compute one tile of
// kQueryTile rows of one head after another.
//
// One thread loads queries, keys and values through the copy engine, keys last first. Two or three
// warpgroups of 64 rows each multiply: scores = Q K' from shared memory, softmax in registers,
// output += weights V with the weights from registers, where they are in the layout that the
// instruction asks for. The output of one block of keys is computed under the softmax of the next,
// and warpgroups take turns, so that one multiplies while another exponentiates.
#include "mod.cuh"

#include "common/math.cuh"
#include "common/place.cuh"
#include "sm90/barrier.cuh"
#include "sm90/logits.cuh"
#include "sm90/schedule.cuh"
#include "sm90/softmax.cuh"
#include "sm90/tma.cuh"
#include "sm90/warpgroup.cuh"
#include "sm90/wgmma.cuh"

using namespace sm90;
using mod::Element;

namespace {

constexpr int kConsumers = mod::kQueryTile / 64; // warpgroups
constexpr int kThreads = 128 * (kConsumers + 1);
static_assert(kThreads == 32 * mod::kWarps);

// Registers of a thread; together no more than the launch gave the block.
constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 32;
constexpr int kConsumerRegisters = kConsumers == 2 ? 232 : 160;

constexpr int panels(int columns) { return (columns + kPanelColumns - 1) / kPanelColumns; }
constexpr int round_up_16(int x) { return (x + 15) / 16 * 16; }

constexpr int kRowBytes = 2 * kPanelColumns; // of a panel
constexpr int kQueryPanel = mod::kQueryTile * kRowBytes, kKeyPanel = mod::kKeyTile * kRowBytes;
constexpr int kPanels = panels(mod::kHeadDim), kValuePanels = panels(mod::kHeadDimV);
constexpr int kOutputs = round_up_16(mod::kHeadDimV) / 2; // accumulators of a thread

// The output leaves through the memory of its queries.
using Queries =
    Stages<mod::kQueryStages, kQueryPanel*(kPanels > kValuePanels ? kPanels : kValuePanels)>;
using Keys = Stages<mod::kStages, kPanels * kKeyPanel>;
using Values = Stages<mod::kStages, kValuePanels * kKeyPanel>;

struct Shared {
    Queries queries;
    Keys keys;
    Values values;
    unsigned indices; // of the tile that each stage of queries belongs to; -1 after the last
    unsigned spare;   // a word that is never read

    static constexpr int kTiles = 1024; // where tiles start, aligned for the swizzle
    static constexpr int kBytes = kTiles + Queries::kStages * Queries::kBytes +
                                  Keys::kStages * Keys::kBytes + Values::kStages * Values::kBytes;

    __device__ explicit Shared(unsigned memory)
        : queries{memory + kTiles, memory},
          keys{queries.at(Queries::kStages), memory + Queries::kBarrierBytes},
          values{keys.at(Keys::kStages), keys.barriers + Keys::kBarrierBytes},
          indices(values.barriers + Values::kBarrierBytes), spare(indices + 4 * Queries::kStages) {}
};
static_assert(Shared::kBytes <= mod::kSharedBytes);

extern __shared__ __align__(1024) unsigned char shared_memory[];

// Where a tile is, and which tiles of keys it sees.
struct Work {
    HeadPlace place;
    TileRange range;

    __device__ Work(const AttentionArguments& attention, const mod::Arguments& arguments,
                    const Tile& tile)
        : place(attention, arguments, tile.head) {
        range =
            tiles_between(tile.first_row + place.low,
                          min(tile.first_row + mod::kQueryTile, attention.q_len) - 1 + place.high,
                          attention.kv_len, mod::kKeyTile);
        range.begin = uniform(range.begin);
        range.end = uniform(range.end);
    }
};

// --- the producer ----------------------------------------------------------------------------

template <typename S>
__device__ void load_stage(const S& stages, Position<S>& position, const TensorMap& map,
                           Corner from, int panel_bytes, int panel_count) {
    stages.empty(position.stage).wait(position.parity ^ 1);
    const Barrier full = stages.full(position.stage);
    full.arrive_expecting(panel_count * panel_bytes);
#pragma unroll
    for (int panel = 0; panel < panel_count; ++panel) {
        load_box(stages.at(position.stage) + panel * panel_bytes, map, from, full);
        from.column += kPanelColumns;
    }
    position.advance();
}

__device__ void produce(const AttentionArguments& attention, const mod::Arguments& arguments,
                        const ForwardMaps& maps, const Turnstile& turnstile, const Shared& shared) {
    Position<Queries> query;
    Position<Keys> key;
    Position<Values> value;
    const Schedule schedule(attention);
    prefetch(maps.q);
    prefetch(maps.k);
    prefetch(maps.v);
    prefetch(maps.o);
    // The number of a tile travels with its queries.
    const auto announce = [&](int index) {
        shared.queries.empty(query.stage).wait(query.parity ^ 1);
        store_shared(shared.indices + 4 * query.stage, index);
    };
#pragma unroll 1
    for (int index = blockIdx.x; index < schedule.tiles();) {
        const int next = turnstile.after(index);
        const Tile tile = schedule.tile(index);
        const Work work(attention, arguments, tile);
        Corner at{work.place.b, work.place.h_kv, 0, 0};
        const auto load_key = [&](int block) {
            at.row = block * mod::kKeyTile;
            load_stage(shared.keys, key, maps.k, at, kKeyPanel, kPanels);
        };
        const auto load_value = [&](int block) {
            at.row = block * mod::kKeyTile;
            load_stage(shared.values, value, maps.v, at, kKeyPanel, kValuePanels);
        };
        const auto [begin, end] = work.range;
        if (begin < end) load_key(end - 1);
        announce(index);
        load_stage(shared.queries, query, maps.q, {work.place.b, work.place.h, tile.first_row, 0},
                   kQueryPanel, kPanels);
        // Values arrive one step after their keys, as they are used.
#pragma unroll 1
        for (int block = end - 1; block >= begin; --block) {
            if (block > begin) load_key(block - 1);
            load_value(block);
        }
        index = next;
    }
    announce(-1);
    shared.queries.full(query.stage).arrive();
    turnstile.leave();
}

// --- the consumers ---------------------------------------------------------------------------

using Output = float[kOutputs];
using Weights = unsigned[mod::kKeyTile / 16][4]; // left operands, 16 keys each

__device__ inline unsigned pack(flexc_bf16, float low, float high) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ inline unsigned pack(flexc_f16, float low, float high) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ void issue_scores(Scores& scores, Operand query, Operand key) {
    constexpr int kSteps = round_up_16(mod::kHeadDim) / 16, kPanelSteps = kPanelColumns / 16;
    pin(scores);
    begin_products();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        const int panel = step / kPanelSteps, inside = step % kPanelSteps * 32;
        Product<Element, mod::kKeyTile>::multiply(scores, query.plus(panel * kQueryPanel + inside),
                                                  key.plus(panel * kKeyPanel + inside), step != 0);
    }
    end_products();
}

__device__ void issue_output(Output& output, Weights& weights, Operand value) {
    pin(output);
    pin(weights);
    begin_products();
#pragma unroll
    for (int step = 0; step < mod::kKeyTile / 16; ++step)
        Product<Element, 2 * kOutputs>::multiply_registers(output, weights[step],
                                                           value.plus(step * 16 * kRowBytes));
    end_products();
}

__device__ void to_weights(Weights& weights, const Scores& scores) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i)
        weights[i / 4][i % 4] = pack(Element{}, scores[2 * i], scores[2 * i + 1]);
}

__device__ void multiply_rows(Output& output, const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i)
        output[i] *= factor[fragment_row(i)];
}

// Whose turn it is: a ring of named barriers, each with one warpgroup that waits and one that
// arrives.
struct Turn {
    int mine, next;

    // Barrier 0 is the block's.
    __device__ explicit Turn(int warpgroup)
        : mine(1 + warpgroup), next(1 + (warpgroup + 1) % kConsumers) {
        if (mod::kTurns != mod::Turns::none && warpgroup == kConsumers - 1) arrive(next, 256);
    }
    __device__ void take(mod::Turns kind) const {
        if (mod::kTurns == kind) synchronize(mine, 256);
    }
    __device__ void pass(mod::Turns kind) const {
        if (mod::kTurns == kind) arrive(next, 256);
    }
};

struct Consumer {
    const AttentionArguments& attention;
    const mod::Arguments& arguments;
    const ForwardMaps& maps;
    const Shared& shared;
    const int warpgroup, lane, warp; // of the consumers; of the warp; of the warpgroup
    const Turn turn;
    Position<Queries> query{};
    Position<Keys> key{};
    Position<Values> value{};

    // One arrival for each warp.
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
    __device__ Operand value_operand() const { return {shared.values.at(value.stage), kKeyPanel}; }
    __device__ void wait_for_key() const { shared.keys.full(key.stage).wait(key.parity); }
    __device__ void wait_for_value() const { shared.values.full(value.stage).wait(value.parity); }

    // Scores of a block of keys, alone.
    __device__ void compute_scores(Scores& scores, Operand queries) {
        wait_for_key();
        issue_scores(scores, queries, key_operand());
        wait_for_products<0>();
        pin(scores);
        release_key();
    }
    // The output that is under way, complete.
    __device__ void finish_output(Output& output, Weights& weights) {
        wait_for_products<0>();
        pin(output);
        pin(weights);
        release_value();
    }

    // The output of one block of keys is computed under the softmax of the next.
    __device__ void attend_overlapped(const Work& work, Operand queries, Logits& logits,
                                      Softmax& softmax, Output& output) {
        const auto [begin, end] = work.range;
        if (begin == end) return;
        Weights weights;
        {
            Scores scores;
            compute_scores(scores, queries);
            logits.apply(scores, (end - 1) * mod::kKeyTile);
            softmax.raise_maximum(scores, logits);
            softmax.exponentiate(scores, logits, 0);
            softmax.exponentiate(scores, logits, 1);
            to_weights(weights, scores);
        }
#pragma unroll 1
        for (int block = end - 2; block >= begin; --block) {
            Scores scores;
            wait_for_key();
            turn.take(mod::Turns::products);
            issue_scores(scores, queries, key_operand());
            wait_for_value();
            issue_output(output, weights, value_operand());
            turn.pass(mod::Turns::products);
            wait_for_products<1>();
            pin(scores);
            release_key();

            turn.take(mod::Turns::softmax);
            logits.apply(scores, block * mod::kKeyTile);
            softmax.raise_maximum(scores, logits);
            softmax.exponentiate(scores, logits, 0, mod::kSettlesAfter, [&](float done) {
                settle(mod::kSettlesAfter == 0 ? softmax.maximum[0] + softmax.maximum[1] : done,
                       shared.spare);
                turn.pass(mod::Turns::softmax);
                finish_output(output, weights);
            });
            softmax.exponentiate(scores, logits, 1);
            to_weights(weights, scores);
            multiply_rows(output, softmax.shrink);
        }
        wait_for_value();
        issue_output(output, weights, value_operand());
        finish_output(output, weights);
    }

    // One product after the other, in fewer registers.
    __device__ void attend_in_order(const Work& work, Operand queries, Logits& logits,
                                    Softmax& softmax, Output& output) {
#pragma unroll 1
        for (int block = work.range.end - 1; block >= work.range.begin; --block) {
            Scores scores;
            Weights weights;
            wait_for_key();
            turn.take(mod::Turns::products);
            issue_scores(scores, queries, key_operand());
            turn.pass(mod::Turns::products);
            wait_for_products<0>();
            pin(scores);
            release_key();
            turn.take(mod::Turns::softmax);
            logits.apply(scores, block * mod::kKeyTile);
            softmax.raise_maximum(scores, logits);
            softmax.exponentiate(scores, logits, 0);
            softmax.exponentiate(scores, logits, 1);
            turn.pass(mod::Turns::softmax);
            to_weights(weights, scores);
            multiply_rows(output, softmax.shrink);
            wait_for_value();
            issue_output(output, weights, value_operand());
            finish_output(output, weights);
        }
    }

    // Weights sum to 1; the log-sum-exp leaves.
    __device__ void normalise(const Work& work, int row, const Logits& logits,
                              const Softmax& softmax, Output& output) const {
        const HeadPlace& place = work.place;
        float* const lse = static_cast<float*>(attention.lse.data) +
                           place.b * attention.lse.stride_b + place.h * attention.lse.stride_h;
        float factor[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float sum = quad_sum(softmax.sum[r]);
            const bool nothing_visible = softmax.maximum[r] == negative_infinity();
            factor[r] = nothing_visible ? 0 : reciprocal_fast(sum);
            if (attention.lse.data && lane % 4 == 0 && row + 8 * r < attention.q_len)
                lse[(row + 8 * r) * attention.lse.stride_s] =
                    nothing_visible ? negative_infinity()
                                    : (logits.exponent(softmax.maximum[r]) + log2_fast(sum) +
                                       logits.lse_shift()) *
                                          kLn2;
        }
        multiply_rows(output, factor);
    }

    // Through the warp's own rows of the queries; all of the warpgroup have read these.
    __device__ void store(const Work& work, int row, unsigned queries, const Output& output) const {
        synchronize(1 + kConsumers + warpgroup, 128);
        const unsigned memory = queries + 16 * warp * kRowBytes;
#pragma unroll
        for (int i = 0; i < kOutputs; i += 8) {
            // Each lane names a row of one of four 8 x 8 matrices, two of them side by side.
            const int chunk = i / 4 + lane / 16;
            const unsigned to = memory + chunk / 8 * kQueryPanel + lane % 16 * kRowBytes +
                                ((chunk % 8) ^ (lane % 8)) * 16;
            asm volatile(
                "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                "r"(pack(Element{}, output[i], output[i + 1])),
                "r"(pack(Element{}, output[i + 2], output[i + 3])),
                "r"(pack(Element{}, output[i + 4], output[i + 5])),
                "r"(pack(Element{}, output[i + 6], output[i + 7]))
                : "memory");
        }
        publish_shared();
        __syncwarp();
        if (lane == 0) {
            Corner corner{work.place.b, work.place.h, row, 0};
#pragma unroll
            for (int panel = 0; panel < kValuePanels; ++panel) {
                store_box(maps.o, corner, memory + panel * kQueryPanel);
                corner.column += kPanelColumns;
            }
            wait_for_store_reads();
        }
    }

    // A partial result, in floats.
    __device__ void store_floats(const Work& work, int row, const Output& output) const {
        const TensorArgument& o = attention.o;
        float* const plane =
            static_cast<float*>(o.data) + work.place.b * o.stride_b + work.place.h * o.stride_h;
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) {
            const int to = row + 8 * fragment_row(i);
            const int column = fragment_column(i) + lane % 4 * 2;
            if (to < attention.q_len && column < mod::kHeadDimV)
                plane[to * o.stride_s + column * o.stride_d] = output[i];
        }
    }

    // False after the last tile.
    __device__ bool consume(const Schedule& schedule) {
        shared.queries.full(query.stage).wait(query.parity);
        const int index = uniform(load_shared(shared.indices + 4 * query.stage));
        if (index < 0) return false;
        const Tile tile = schedule.tile(index);
        const Work work(attention, arguments, tile);
        const int warp_row = tile.first_row + 64 * warpgroup + 16 * warp;
        const int row = warp_row + lane / 4;
        const unsigned queries = shared.queries.at(query.stage) + warpgroup * 64 * kRowBytes;
        Logits logits(attention, arguments, work.place, row, lane % 4 * 2);
        Softmax softmax;
        Output output;
#pragma unroll
        for (int i = 0; i < kOutputs; ++i)
            output[i] = 0;
        if constexpr (mod::kOverlaps)
            attend_overlapped(work, Operand(queries, 16), logits, softmax, output);
        else
            attend_in_order(work, Operand(queries, 16), logits, softmax, output);
        normalise(work, row, logits, softmax, output);
        if (attention.o_flags & kOutputF32)
            store_floats(work, row, output);
        else
            store(work, warp_row, queries, output);
        release(shared.queries.empty(query.stage));
        query.advance();
        return true;
    }
};

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flexc_forward_sm90(const __grid_constant__ AttentionArguments attention,
                       const __grid_constant__ mod::Arguments arguments,
                       const __grid_constant__ ForwardMaps maps, int* queue) {
    const Shared shared(shared_address(shared_memory));
    const int warpgroup = uniform(static_cast<int>(threadIdx.x) / 128);
    if (threadIdx.x == 0) {
        constexpr int kConsumerWarps = 4 * kConsumers;
        shared.queries.initialise(kConsumerWarps);
        shared.keys.initialise(kConsumerWarps);
        shared.values.initialise(kConsumerWarps);
        publish_barriers();
    }
    __syncthreads();
    if (warpgroup == 0) {
        release_registers_to<kProducerRegisters>();
        if (threadIdx.x == 0) produce(attention, arguments, maps, Turnstile(queue), shared);
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
                          Turn(index)};
        const Schedule schedule(attention);
        while (consumer.consume(schedule))
            ;
    }
}
