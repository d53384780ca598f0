// Before Hopper's backward kernel, for every query: delta = sum over d of d_out * o, less d_lse;
// zeros in dq's accumulator; what a sink changes; and gradients of buffers that follow from sums
// over rows alone. One block does kQueryTile rows of one head, those past the end included: TMA
// moves whole tiles of deltas and of the accumulator. Zeros also for how many blocks are done with
// a head. Where that kernel stores what it has first, dq's accumulator is left as it is, and said
// to be untouched.
#include "mod.cuh"

#include "common/math.cuh"
#include "common/sink.cuh"
#include "sm90/arguments.h"
#include "common/dependence.cuh"
#include "sm90/gradients/row.cuh"
#include "sm90/row_products.cuh"

using namespace sm80;

namespace {
constexpr int kThreads = 32 * mod::kWarps;
static_assert(mod::kQueryTile == kThreads && mod::kHeadDim % 8 == 0);
} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_backward_delta_sm90(const __grid_constant__ sm90::KernelArguments attention,
                              const __grid_constant__ mod::Arguments arguments) {
    // First: kernels after the next one may start soon, too.
    if (attention.blocks_done != nullptr && blockIdx.x == 0)
#pragma unroll 1
        for (int i = threadIdx.x; i < attention.batch * attention.kv_heads; i += kThreads)
            attention.blocks_done[i] = 0;
    if (attention.tiles_taken != nullptr && blockIdx.x == 0 && threadIdx.x == 0)
        *attention.tiles_taken = 0;
    let_next_start();
    const int query_tiles = (attention.q_len + mod::kQueryTile - 1) / mod::kQueryTile;
    // What the next kernel needs first comes last, and is in the L2 cache then.
    const int tile = static_cast<int>(gridDim.x - 1 - blockIdx.x);
    const int head = tile / query_tiles;
    const int b = head / attention.heads, h = head % attention.heads;
    const int first_row = tile % query_tiles * mod::kQueryTile;
    const long long first_of_all = static_cast<long long>(tile) * mod::kQueryTile;

    // Each thread has the row whose sum it is given at the end.
    const int row = first_row + static_cast<int>(threadIdx.x);
    const bool inside = row < attention.q_len;
    float d_lse = 0;
    if (inside && attention.d_lse.data != nullptr)
        d_lse = *Plane<float>(attention.d_lse, b, h).at(row, 0);

    if (attention.row_block_states != nullptr) {
        constexpr int kRowBlocks = mod::kQueryTile / 64;
        if (threadIdx.x < kRowBlocks)
            attention.row_block_states[static_cast<long long>(tile) * kRowBlocks + threadIdx.x] =
                sm90::kRowBlockUntouched;
    } else {
        float4* const dq =
            reinterpret_cast<float4*>(attention.dq_accumulator + first_of_all * mod::kHeadDim);
        for (int i = threadIdx.x; i < mod::kQueryTile * mod::kHeadDim / 4; i += kThreads)
            dq[i] = {0, 0, 0, 0};
    }

    const float product = sm90::row_product_of(attention, b, h, first_row);
    const long long of_all = first_of_all + threadIdx.x;
    const int counted = min(row, attention.q_len - 1);
    float of_sink = 0; // what the sink takes from the gradients of the row's scores
    if constexpr (mod::kHasSink) {
        wait_for_kernel_ahead();
        const RowOfSink at{b,      h,     counted, counted + static_cast<int>(attention.q_offset),
                           of_all, inside};
        of_sink = add_sink(attention, arguments, at, d_lse) * product;
        add_sink_gradients(attention, arguments, at, inside ? -of_sink : 0);
    }
    attention.row_facts[row_fact_place(of_all, kDeltaFact)] = inside ? product - d_lse : 0;

    // The next kernel, which waits for this one alone, reads what the one ahead wrote.
    if constexpr (!mod::kHasSink) wait_for_kernel_ahead();
    if (mod::kGradients == 0 || (!mod::kHasSink && attention.d_lse.data == nullptr)) return;
    const float sum = inside ? sm90::row_sum(attention, b, h, row) + of_sink : 0;
    sm90::visit_row(attention, arguments, b, h, counted,
                    [&](const mod::At& at) { sm90::add_row_gradients(at, sum); });
}
