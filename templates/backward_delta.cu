// Runs before the backward kernels: computes delta = rowsum(d_out * o) - d_lse of every query, and
// adds the sink to the row's statistics. Each block computes kQueryTile rows of one head.
#include "mod.cuh"

#include "common/select.h"
#include "common/sink.cuh"
#include "sm80/row_products.cuh"
#include "sm80/tile_order.cuh"
#include "sm80/workspace.cuh"

using namespace sm80;

namespace {

constexpr int kThreads = 32 * mod::kWarps;
static_assert(mod::kQueryTile % (kThreads / kRowLanes) == 0); // so that warps stay together

// Computes delta of a row. Called by all lanes that share the row.
struct NoSink {
    static __device__ float delta(const AttentionArguments& attention, const mod::Arguments&,
                                  const SequenceLength& length, const RowOfSink& at) {
        return delta_of(attention, length, at.h, at.row);
    }
};
struct SinkOfProgram {
    static __device__ float delta(const AttentionArguments& attention,
                                  const mod::Arguments& arguments, const SequenceLength& length,
                                  const RowOfSink& at) {
        const float product = row_product(attention, length, at.h, at.row);
        float d_lse = d_lse_of(attention, length, at.h, at.row);
        const float weight = add_sink(attention, arguments, at, d_lse);
        add_sink_gradients(attention, arguments, at, at.exists ? -weight * product : 0);
        return product - d_lse;
    }
};
using Sink = Select<mod::Sink::kExists, SinkOfProgram, NoSink>;

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_backward_delta(const __grid_constant__ sm80::KernelArguments attention,
                         const __grid_constant__ mod::Arguments arguments) {
    const BlockTile block = tile_of_rows(attention, static_cast<int>(blockIdx.x), mod::kQueryTile);
    const SequenceLength length(attention, block.head / attention.heads);
    const int h = block.head % attention.heads;
    const int first_row = block.tile * mod::kQueryTile;
    const int row_count = min(mod::kQueryTile, length.queries() - first_row);
    if (!mod::Layouts::kAreDense && (block.tile < 0 || row_count <= 0)) return;
    float* const deltas = delta_of_head(attention, length, h) + first_row;
    const RowStatistics statistics(attention, length, h);

    for (int i = static_cast<int>(threadIdx.x) / kRowLanes; i < mod::kQueryTile;
         i += kThreads / kRowLanes) {
        const int row = first_row + min(i, row_count - 1);
        const bool is_first = threadIdx.x % kRowLanes == 0 && i < row_count;
        const RowOfSink at{length.b(), h, row, length.q_idx(row), statistics.place(row), is_first};
        const float delta = Sink::delta(attention, arguments, length, at);
        if (is_first) deltas[i] = delta;
    }
}
