// Runs after the fused backward kernel: converts dq from its f32 accumulator to the type and layout
// of the caller. Each block converts kQueryTile rows of one head.
#include "mod.cuh"

#include "sm80/backward_output.cuh"
#include "sm80/tile_order.cuh"
#include "sm80/workspace.cuh"

using namespace sm80;
using mod::Element;

namespace {
constexpr int kThreads = 32 * mod::kWarps;
}

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_backward_convert(const __grid_constant__ sm80::KernelArguments attention,
                           const __grid_constant__ mod::Arguments) {
    constexpr int kPairs = (mod::kHeadDim + 1) / 2;
    const BlockTile block = tile_of_rows(attention, static_cast<int>(blockIdx.x), mod::kQueryTile);
    const int first_row = block.tile * mod::kQueryTile;
    const SequenceLength length(attention, block.head / attention.heads);
    const int h = block.head % attention.heads;
    if (!has_queries(length, block.tile)) return;
    const float* const sums = dq_accumulator_row(attention, length, h, first_row);
    const int row_count = min(mod::kQueryTile, length.query_rows() - first_row);
    const GradientPlane<Element> dq =
        query_gradient<Element>(attention.dq, attention.dq_flags, length, h);
#pragma unroll 4
    for (int i = threadIdx.x; i < row_count * kPairs; i += kThreads) {
        const int row = i / kPairs, column = i % kPairs * 2;
        const float* const from = sums + row * mod::kHeadDim + column;
        dq.put(first_row + row, column, mod::kHeadDim, attention.scale * from[0],
               column + 1 < mod::kHeadDim ? attention.scale * from[1] : 0);
    }
}
