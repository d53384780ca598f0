// Before the backward kernels: delta = sum over d of d_out * o, less d_lse, for every query; and
// what its sink changes. One block does kQueryTile rows of one head.
#include "mod.cuh"

#include "common/sink.cuh"
#include "sm80/arguments.h"
#include "sm80/row_products.cuh"

using namespace sm80;

namespace {
constexpr int kThreads = 32 * mod::kWarps;
static_assert(mod::kQueryTile % (kThreads / kRowLanes) == 0); // so that warps stay together
} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_backward_delta(const __grid_constant__ sm80::KernelArguments attention,
                         const __grid_constant__ mod::Arguments arguments) {
    const int query_tiles = (attention.q_len + mod::kQueryTile - 1) / mod::kQueryTile;
    const int head = static_cast<int>(blockIdx.x) / query_tiles;
    const int b = head / attention.heads, h = head % attention.heads;
    const int first_row = static_cast<int>(blockIdx.x) % query_tiles * mod::kQueryTile;
    const int row_count = min(mod::kQueryTile, attention.q_len - first_row);
    const long long first_of_all = static_cast<long long>(head) * attention.q_len + first_row;

    for (int i = static_cast<int>(threadIdx.x) / kRowLanes; i < mod::kQueryTile;
         i += kThreads / kRowLanes) {
        const int row = first_row + min(i, row_count - 1);
        if constexpr (mod::kHasSink) {
            const bool is_first = threadIdx.x % kRowLanes == 0 && i < row_count;
            const RowOfSink at{b, h, row, static_cast<long long>(head) * attention.fact_rows + row,
                               is_first};
            const float product = row_product(attention, b, h, row);
            float d_lse = d_lse_of(attention, b, h, row);
            const float weight = add_sink(attention, arguments, at, d_lse);
            if (is_first) attention.delta[first_of_all + i] = product - d_lse;
            if constexpr (mod::kLearnsSink)
                add_sink_gradients(attention, arguments, at, is_first ? -weight * product : 0);
            continue;
        }
        const float delta = delta_of(attention, b, h, row);
        if (threadIdx.x % kRowLanes == 0 && i < row_count)
            attention.delta[first_of_all + i] = delta;
    }
}
