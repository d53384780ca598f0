// Attention, backward, for many short sequences: a tile holds a whole sequence, and a block
// computes dq, dk and dv of one sequence after another.
//     P = exp(mod(S) - lse)                            dv = P^T d_out
//     dS = P * (d_out V^T - delta) * mod'(S)           dk = dS^T Q       dq = dS K
// A warp has 16 keys: it computes P and dS of all queries transposed, so that they are operands of
// dv and dk in the registers that hold them. Only dS goes through shared memory, for dq, of which
// each warp has the rows of some queries.
//
// If sequences of a head share values, a block computes them one after another: see
// sm80/backward_shared.cuh.
#include "mod.cuh"

#include "sm80/backward_shared.cuh"
#include "sm80/gradient_rows.cuh"
#include "sm80/own_row_statistics.cuh"
#include "sm80/row_references.cuh"
#include "sm80/scores_of_keys.cuh"
#include "sm80/sequences_of_block.cuh"

using namespace sm80;

namespace {

// Each warp owns whole rows.
using OwnQueryGradient = WarpResult<mod::kQueryTile, mod::kHeadDim, mod::kWarps, true>;
using OwnKeyGradient = WarpResult<mod::kKeyTile, mod::kHeadDim, mod::kWarps, true>;
using OwnValueGradient = WarpResult<mod::kKeyTile, mod::kHeadDimV, mod::kWarps, true>;
using DScoreTile = Tile<Element, mod::kKeyTile, mod::kQueryTile>; // a row for each key

constexpr BackwardShortLayout kLayout = backward_short_layout(kSizes);
static_assert(mod::Layouts::kAreDense && !mod::Mask::kHasBlockMask && mod::kStages == 1);
static_assert(kLayout.bytes + SharedByHead::kBytes <= mod::kSharedBytes);
extern __shared__ __align__(128) unsigned char shared_memory[];

struct Shared {
    unsigned base;
    __device__ KeyTile keys() const { return {base}; }
    __device__ ValueTile values() const { return {base + kLayout.values}; }
    __device__ DScoreTile d_scores() const { return {base + kLayout.d_scores}; }
    __device__ QueryTile queries() const { return {base + kLayout.queries}; }
    __device__ DOutTile d_out() const { return {base + kLayout.d_out}; }
    __device__ SharedRowStatistics row_statistics() const {
        return SharedRowStatistics(base + kLayout.row_statistics);
    }
    __device__ unsigned room() const { return d_scores().base; }
};

__device__ void load_keys(Shared shared, const KernelArguments& attention,
                          const SequenceLength& length, int h_kv) {
    load_tile<kThreads>(shared.keys(), key_plane<Element>(attention.k, length, h_kv), 0,
                        length.keys());
    load_tile<kThreads>(shared.values(), key_plane<Element>(attention.v, length, h_kv), 0,
                        length.keys());
    clear_padding<kThreads>(shared.keys());
    clear_padding<kThreads>(shared.values());
}

__device__ void load_queries(Shared shared, const KernelArguments& attention,
                             const SequenceLength& length, int h) {
    load_tile<kThreads>(shared.queries(), query_plane<Element>(attention.q, length, h), 0,
                        length.queries());
    load_tile<kThreads>(shared.d_out(), query_plane<Element>(attention.d_out, length, h), 0,
                        length.queries());
    clear_padding<kThreads>(shared.queries());
    clear_padding<kThreads>(shared.d_out());
}

// The warp's rows of keys or values, as operands: in registers if they are few.
template <typename T> class RowsOfWarp {
    static constexpr int kSteps = T::kPaddedColumns / kStepK<Element>;
    static constexpr bool kAreKept = sizeof(Element) == 2 && mod::kHeadDim + mod::kHeadDimV <= 64;

  public:
    __device__ explicit RowsOfWarp(T tile) : tile_(tile) {
        if constexpr (kAreKept) {
#pragma unroll
            for (int i = 0; i < kSteps; ++i)
                kept_[i] = load_a(tile, first_key_of_warp(), i * kStepK<Element>);
        }
    }
    __device__ OperandA<Element> at(int k) const {
        if constexpr (kAreKept)
            return kept_[k / kStepK<Element>];
        else
            return load_a(tile_, first_key_of_warp(), k);
    }

  private:
    T tile_;
    OperandA<Element> kept_[kAreKept ? kSteps : 1];
};

// Sets products to those of the warp's keys, or values, and 16 rows of `right`.
template <typename T, int kColumns>
__device__ void multiply_rows(StepScores& products, const RowsOfWarp<T>& left,
                              Tile<Element, kStepRows, kColumns> right) {
    products.clear();
    accumulate<Element, T::kPaddedColumns, true>(
        products, [&](int, int k) { return left.at(k); },
        [&](OperandB<Element>(&b)[2], int unit, int k) { load_b(b, right, 16 * unit, k); });
}

// gradient += scores * rows
template <typename Gradient, int kColumns>
__device__ void add_step(Gradient& gradient, const StepScores& scores,
                         Tile<Element, kStepRows, kColumns> rows) {
    accumulate<Element, kStepRows, true>(
        gradient,
        [&](int fragment, int k) {
            return operand_from_accumulators<Element>(scores.values[fragment], k / kStepK<Element>);
        },
        [&](OperandB<Element>(&b)[2], int unit, int k) {
            load_b_transposed(b, rows, 16 * unit, k);
        });
}

template <typename Seen>
__device__ void differentiate_step(StepScores& products, StepScores& dp, Shared shared,
                                   const Surroundings& around, const KeysOfThread& keys,
                                   int first_q, const SharedByHead& of_head,
                                   mod::GradientSums& sums) {
    const Seen seen(around, keys, first_q);
    const int before = first_q / kStepRows * StepScores::kElements;
#pragma unroll
    for (int i = 0; i < StepScores::kQueries; ++i) {
        const ScoreRow query =
            query_at(around, shared.row_statistics(), first_q + StepScores::query(i));
#pragma unroll
        for (int key = 0; key < keys.kCount; ++key) {
            const int element = keys.kCount * i + key;
            mod::At at = element_at(around, query, keys.of[key]);
            at.shared_value = of_head.values.load(before + element);
            differentiate(products.of(key, i), dp.of(key, i),
                          seen(around, element, query, keys.of[key]), at, around.attention.scale,
                          query, [&](const mod::Joint& joint, float d_modified, bool visible) {
                              if (!visible) return;
                              mod::sum_gradients(at, joint, d_modified, sums);
                              of_head.gradients.add(before + element, joint, d_modified);
                          });
        }
    }
}

// Computes P and dS of the warp's keys, adds to their dk and dv, and writes dS to shared memory.
__device__ void add_queries(OwnKeyGradient& dk, OwnValueGradient& dv, Shared shared,
                            const Surroundings& around, const SharedByHead& of_head,
                            mod::GradientSums& sums) {
    const RowsOfWarp<KeyTile> own_keys(shared.keys());
    const RowsOfWarp<ValueTile> own_values(shared.values());
    const KeysOfThread keys(around);
    const int warp = StepScores::warp();
#pragma unroll 1
    for (int first_q = 0; first_q < around.length.queries(); first_q += kStepRows) {
        const TileRange seen = warps_seen(around, first_q);
        if (warp < seen.begin || warp >= seen.end) continue;
        const auto queries = rows_of<kStepRows>(shared.queries(), first_q);
        const auto d_out = rows_of<kStepRows>(shared.d_out(), first_q);
        StepScores scores, d_scores;
        multiply_rows(scores, own_keys, queries);
        multiply_rows(d_scores, own_values, d_out);
        if (shows_step(around, first_q))
            differentiate_step<AllOfStep>(scores, d_scores, shared, around, keys, first_q, of_head,
                                          sums);
        else
            differentiate_step<SeenInStep>(scores, d_scores, shared, around, keys, first_q, of_head,
                                           sums);
        store_result(DScoreTile{shared.d_scores().at(0, first_q)}, d_scores);
        add_step(dv, scores, d_out);
        add_step(dk, d_scores, queries);
    }
}

// Computes dq of the warp's queries from dS, of which only what the queries may see has been
// written.
__device__ void add_keys(OwnQueryGradient& dq, Shared shared, const Surroundings& around) {
    const TileRange seen = warps_seen(around, OwnQueryGradient::first_row());
#pragma unroll 1
    for (int i = seen.begin; i < seen.end; ++i)
        mma_columns(dq, rows_of<kStepRows>(shared.d_scores(), kStepRows * i),
                    rows_of<kStepRows>(shared.keys(), kStepRows * i));
}

// Computes one sequence. All threads have finished the sequence before.
__device__ void differentiate_sequence(const KernelArguments& attention,
                                       const mod::Arguments& arguments, SharedByHead& of_head,
                                       int b, int h_kv) {
    const Shared shared{computed_again(shared_address(shared_memory))};
    const SequenceLength length(attention, b);
    const int group = attention.heads / attention.kv_heads, last_h = (h_kv + 1) * group - 1;
    load_keys(shared, attention, length, h_kv);
    OwnKeyGradient dk;
    OwnValueGradient dv;
    dk.clear();
    dv.clear();
#pragma unroll 1
    for (int h = h_kv * group; h <= last_h; ++h) {
        const HeadPlace place(attention, arguments, b, h, h_kv);
        const Surroundings around{attention, arguments, place, length};
        mod::GradientSums sums{};
        const OwnRowStatistics row_statistics(attention, arguments, length, h,
                                              shared.row_statistics(), shared.d_scores().base);
        row_statistics.load();
        load_queries(shared, attention, length, h);
        of_head.values.find(around);
        wait_for_copies();
        __syncthreads();
        row_statistics.find(shared.d_out());
        add_queries(dk, dv, shared, around, of_head, sums);
        mod::flush_gradients(arguments, place.launch, place.head, b, h, h_kv, sums);
        __syncthreads(); // dS is here
        OwnQueryGradient dq;
        dq.clear();
        add_keys(dq, shared, around);
        __syncthreads();                          // everyone has left the tiles
        const int of_keys = computed_again(h_kv); // so that no address waits for the last head
        const GradientRows<QueryTile, kThreads> dq_rows(
            shared.queries(), shared.room(),
            query_gradient<Element>(attention.dq, attention.dq_flags, length, h), length.queries());
        const GradientRows<KeyTile, kThreads> dk_rows(
            shared.keys(), shared.room(),
            key_gradient<Element>(attention.dk, attention.dk_flags, length, of_keys),
            length.keys());
        const GradientRows<ValueTile, kThreads> dv_rows(
            shared.values(), shared.room(),
            key_gradient<Element>(attention.dv, attention.dv_flags, length, of_keys),
            length.keys());
        dq_rows.put(dq, attention.scale);
        if (h == last_h) {
            dk_rows.put(dk, attention.scale);
            dv_rows.put(dv, 1);
        }
        __syncthreads();
        dq_rows.copy();
        if (h == last_h) {
            dk_rows.copy();
            dv_rows.copy();
        }
        __syncthreads(); // they have left
    }
}

// Computes sequences [first, last), counted over all heads, with those of a head together.
__device__ void differentiate_by_heads(const KernelArguments& attention,
                                       const mod::Arguments& arguments, SharedByHead& of_head,
                                       int first, int last) {
    const int batch = attention.batch;
    while (first < last) {
        const int h_kv = first / batch, end = min(last, (h_kv + 1) * batch);
        of_head.gradients.clear();
#pragma unroll 1
        for (; first < end; ++first)
            differentiate_sequence(attention, arguments, of_head, first - h_kv * batch, h_kv);
        // With such gradients, every query head has a KV head of its own.
        const HeadPlace place(attention, arguments, 0, h_kv, h_kv);
        of_head.gradients.flush<kLayout.bytes>(
            {attention, arguments, place, SequenceLength(attention, 0)},
            shared_address(shared_memory));
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, mod::kBlocksAtOnce)
    flexc_backward_short(const __grid_constant__ KernelArguments attention,
                         const __grid_constant__ mod::Arguments arguments) {
    SharedByHead of_head(shared_address(shared_memory) + kLayout.bytes);
    const SequenceRange sequences =
        sequences_of_block(static_cast<long long>(attention.batch) * attention.kv_heads);
    if constexpr (SharedByHead::kBytes > 0) {
        differentiate_by_heads(attention, arguments, of_head, sequences.first, sequences.end);
    } else {
#pragma unroll 1
        for (int i = sequences.first; i < sequences.end; ++i)
            differentiate_sequence(attention, arguments, of_head, i / attention.kv_heads,
                                   i % attention.kv_heads);
    }
}
