// Attention, backward, for many short sequences: a tile holds a whole sequence, and a block
// computes dq, dk and dv of one sequence after another.
//     P = exp(mod(S) - lse)                            dv = P^T d_out
//     dS = P * (d_out V^T - delta) * mod'(S)           dk = dS^T Q       dq = dS K
// P and dS go through shared memory, because each product needs them in another layout of
// registers.
//
// If sequences of a head share values, a block computes them one after another: see
// sm80/backward_shared.cuh.
#include "mod.cuh"

#include "sm80/backward_scores.cuh"
#include "sm80/backward_shared.cuh"
#include "sm80/gradient_rows.cuh"
#include "sm80/own_row_sums.cuh"
#include "sm80/row_references.cuh"
#include "sm80/sequences_of_block.cuh"

using namespace sm80;

namespace {

using QueryGradient = WarpResult<mod::kQueryTile, mod::kHeadDim, mod::kWarps>;

constexpr BackwardShortLayout kLayout = backward_short_layout(kSizes);
static_assert(mod::Layouts::kAreDense && !mod::Mask::kHasBlockMask && mod::kStages == 1);
static_assert(kLayout.bytes + SharedByHead::kBytes <= mod::kSharedBytes);
extern __shared__ __align__(128) unsigned char shared_memory[];

struct Shared {
    unsigned base;
    __device__ KeyTile keys() const { return {base}; }
    __device__ ValueTile values() const { return {base + kLayout.values}; }
    __device__ PTile p() const { return {base + kLayout.p}; }
    __device__ PTile d_scores() const { return {base + kLayout.d_scores}; }
    __device__ QueryTile queries() const { return {base + kLayout.queries}; }
    __device__ DOutTile d_out() const { return {base + kLayout.d_out}; }
    __device__ unsigned row_sums() const { return base + kLayout.row_sums; }
    __device__ unsigned room() const { return d_out().base; }
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

template <typename Seen>
__device__ void differentiate_all(SequenceScores& products, SequenceScores& dp,
                                  const Surroundings& around, const ScoreTile& tile,
                                  const SharedByHead& of_head, mod::GradientSums& sums) {
    ElementOrder::visit<SequenceScores>(
        around, tile, Seen(around, tile),
        [&](int row, int column, bool visible, const ScoreRow& row_facts,
            const ScoreColumn& column_facts) {
            mod::At at = element_at(around, row_facts, column_facts);
            at.shared_value = of_head.values.load(row, column);
            differentiate(products.at(row, column / 2, column % 2),
                          dp.at(row, column / 2, column % 2), visible, at, around.attention.scale,
                          row_facts, [&](const mod::Joint& joint, float d_modified) {
                              mod::sum_gradients(at, joint, d_modified, sums);
                              of_head.gradients.add(row, column, joint, d_modified);
                          });
        });
}

// Computes P and dS and writes them to shared memory.
__device__ void compute_scores(Shared shared, const Surroundings& around,
                               const SharedByHead& of_head, mod::GradientSums& sums) {
    const ScoreTile tile{0, 0, shared.row_sums(), 4 * mod::kQueryTile};
    SequenceScores scores, d_scores;
    scores.clear();
    d_scores.clear();
    mma_rows(scores, shared.queries(), shared.keys());
    mma_rows(d_scores, shared.d_out(), shared.values());
    if (shows_all<SequenceScores>(around, tile))
        differentiate_all<AllAreVisible>(scores, d_scores, around, tile, of_head, sums);
    else
        differentiate_all<typename ElementOrder::Visible<SequenceScores>>(scores, d_scores, around,
                                                                          tile, of_head, sums);
    store_result(shared.p(), scores);
    store_result(shared.d_scores(), d_scores);
}

// Computes one sequence. All threads have finished the sequence before.
__device__ void differentiate_sequence(const KernelArguments& attention,
                                       const mod::Arguments& arguments, SharedByHead& of_head,
                                       int b, int h_kv) {
    const Shared shared{computed_again(shared_address(shared_memory))};
    const SequenceLength length(attention, b);
    const int group = attention.heads / attention.kv_heads, last_h = (h_kv + 1) * group - 1;
    load_keys(shared, attention, length, h_kv);
    KeyGradient dk;
    ValueGradient dv;
    dk.clear();
    dv.clear();
#pragma unroll 1
    for (int h = h_kv * group; h <= last_h; ++h) {
        const HeadPlace place(attention, arguments, b, h, h_kv);
        const Surroundings around{attention, arguments, place, length};
        mod::GradientSums sums{};
        const OwnRowSums row_sums(attention, arguments, length, h, shared.row_sums(),
                                  shared.p().base);
        row_sums.load();
        load_queries(shared, attention, length, h);
        of_head.values.find(around);
        wait_for_copies();
        __syncthreads();
        row_sums.find(shared.d_out());
        compute_scores(shared, around, of_head, sums);
        mod::flush_gradients(arguments, place.launch, place.head, b, h, h_kv, sums);
        __syncthreads(); // P and dS are here
        QueryGradient dq;
        dq.clear();
        mma_columns(dv, shared.p(), shared.d_out());
        mma_columns(dk, shared.d_scores(), shared.queries());
        add_product(dq, shared.d_scores(), shared.keys());
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
        of_head.gradients.flush({attention, arguments, place, SequenceLength(attention, 0)});
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
