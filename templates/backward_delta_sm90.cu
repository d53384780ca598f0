// Runs before Hopper's backward kernel and computes for every query: delta = sum over d of d_out *
// o, less d_lse; what a sink changes; and gradients of buffers that follow from sums over rows
// alone. It also zeroes dq's accumulator, and the counters of blocks that are done with a head.
// Where the backward kernel stores the first part of each row block, it leaves the accumulator as
// it is and marks its row blocks as untouched. One block has kQueryTile rows of one head, those
// past the end included, since TMA moves whole tiles of deltas and of the accumulator.
#include "mod.cuh"

#include "common/dependence.cuh"
#include "common/math.cuh"
#include "common/sink.cuh"
#include "sm80/tile_order.cuh"
#include "sm90/arguments.h"
#include "sm90/gradients/row.cuh"
#include "sm90/row_products.cuh"

using namespace sm80;

namespace {
constexpr int kThreads = 32 * mod::kWarps;
static_assert(mod::kQueryTile == kThreads && mod::kHeadDim % 8 == 0);

// Returns the first row of a tile in the workspace. place: index of the tile over all heads, which
// is used where tensors are dense.
__device__ inline long long first_row_of_all(const AttentionArguments& attention,
                                             const SequenceLength& length, int place, int h,
                                             int first_row) {
    if constexpr (mod::Layouts::kAreDense) return static_cast<long long>(place) * mod::kQueryTile;
    return first_ragged_statistic(attention, length.first_query_row(), length.b(), h) + first_row;
}
} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_backward_delta_sm90(const __grid_constant__ sm90::KernelArguments attention,
                              const __grid_constant__ mod::Arguments arguments) {
    // Zeroes the counters first, since kernels after the next one may start soon, too.
    if (attention.blocks_done != nullptr && blockIdx.x == 0)
#pragma unroll 1
        for (int i = threadIdx.x; i < attention.batch * attention.kv_heads; i += kThreads)
            attention.blocks_done[i] = 0;
    if (attention.tiles_taken != nullptr && blockIdx.x == 0 && threadIdx.x == 0)
        *attention.tiles_taken = 0;
    let_next_start();
    // Tiles are taken from the last to the first, so that what the next kernel needs first is still
    // in the L2 cache.
    const int place = static_cast<int>(gridDim.x - 1 - blockIdx.x);
    const BlockTile tile = tile_of_rows(attention, place, mod::kQueryTile);
    const SequenceLength length(attention, tile.head / attention.heads);
    const int h = tile.head % attention.heads;
    const int first_row = tile.tile * mod::kQueryTile;
    if (!mod::Layouts::kAreDense && (tile.tile < 0 || first_row >= length.queries())) {
        wait_for_kernel_ahead();
        return;
    }
    const long long first_of_all = first_row_of_all(attention, length, place, h, first_row);

    // Each thread has one row, whose sum row_product_of() returns to it.
    const int row = first_row + static_cast<int>(threadIdx.x);
    const bool inside = row < length.queries();
    float d_lse = 0;
    if (inside && attention.d_lse.data != nullptr)
        d_lse = *query_plane<float>(attention.d_lse, length, h).at(row, 0);

    if (attention.row_block_states != nullptr) {
        constexpr int kRowBlocks = mod::kQueryTile / 64;
        if (threadIdx.x < kRowBlocks)
            attention.row_block_states[first_of_all / 64 + threadIdx.x] = sm90::kRowBlockUntouched;
    } else {
        float4* const dq =
            reinterpret_cast<float4*>(attention.dq_accumulator + first_of_all * mod::kHeadDim);
        for (int i = threadIdx.x; i < mod::kQueryTile * mod::kHeadDim / 4; i += kThreads)
            dq[i] = {0, 0, 0, 0};
    }

    const float product = sm90::row_product_of(attention, length, h, first_row);
    const long long of_all = first_of_all + threadIdx.x;
    const int counted = min(row, length.queries() - 1);
    float of_sink = 0; // what the sink takes from the gradients of the row's scores
    if constexpr (mod::Sink::kExists) {
        wait_for_kernel_ahead();
        const RowOfSink at{length.b(), h, counted, length.q_idx(counted), of_all, inside};
        of_sink = add_sink(attention, arguments, at, d_lse) * product;
        add_sink_gradients(attention, arguments, at, inside ? -of_sink : 0);
    }
    attention.row_statistics[row_statistic_place(of_all, kRowDelta)] = inside ? product - d_lse : 0;

    // The next kernel waits for this one alone, but reads what the kernel ahead wrote.
    if constexpr (!mod::Sink::kExists) wait_for_kernel_ahead();
    if (mod::kGradients == 0 || (!mod::Sink::kExists && attention.d_lse.data == nullptr)) return;
    const float sum = inside ? sm90::row_sum(attention, length, h, row) + of_sink : 0;
    sm90::visit_row(attention, arguments, length, h, counted,
                    [&](const mod::At& at) { sm90::add_row_gradients(at, sum); });
}
