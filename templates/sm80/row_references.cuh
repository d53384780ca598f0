// Runs before a backward kernel and finds the numbers by which it computes P of each query:
//     weight = exp2((score - reference) * log2(e) - lse_log2).
// The reference is 0 where the rounding error of lse changes P by less than rounding P to 16 bits
// does. Rows with a larger lse have the maximum and the sum of P of their scores computed again
// here, with the same products as in the backward kernel. If lse is not that of these scores,
// because it includes keys that this call lacks (merged partial results), lse itself is the
// reference. Without a score mod the reference is a product before scaling.
#pragma once

#include "common/dependence.cuh"
#include "sm80/large_rows.cuh"
#include "sm80/tile_order.cuh"
#include "sm80/workspace.cuh"

// Each block computes kReferenceRows rows of one head, one row a thread. Most rows are usual, whose
// blocks only wait for memory: registers must leave room for several on a multiprocessor.
extern "C" __global__ void __launch_bounds__(kReferenceRows, 4)
    flexc_backward_references(const __grid_constant__ AttentionArguments attention,
                              const __grid_constant__ mod::Arguments arguments) {
    let_next_start();
    const sm80::BlockTile block =
        sm80::tile_of_rows(attention, static_cast<int>(blockIdx.x), kReferenceRows);
    const int first_row = block.tile * kReferenceRows;
    const SequenceLength length(attention, block.head / attention.heads);
    const int h = block.head % attention.heads;
    if (!mod::Layouts::kAreDense && (block.tile < 0 || first_row >= length.queries())) return;
    const sm80::RowStatistics statistics(attention, length, h);
    const auto store = [&](int row, float reference, float lse_log2) {
        statistics.of(row, kRowReference) = reference;
        statistics.of(row, kRowLseLog2) = lse_log2;
    };
    const int row = first_row + static_cast<int>(threadIdx.x);
    float lse = negative_infinity();
    if (row < length.queries())
        lse = *sm80::query_plane<float>(attention.lse, length, h).at(row, 0);
    const bool tile_has_large = __syncthreads_or(is_large_lse(lse));
    store(row, 0, row_lse_log2(lse == negative_infinity() ? -lse : lse * kLog2E, tile_has_large));
    if (!tile_has_large) return;
    using LargeRows = sm80::LargeRows<4>;
    __shared__ unsigned large_of_warps[LargeRows::kWarps];
    __shared__ LargeRows::Parts parts;
    const unsigned large_of_warp = __ballot_sync(0xffffffffu, is_large_lse(lse));
    if (threadIdx.x % 32 == 0) large_of_warps[threadIdx.x / 32] = large_of_warp;
    __syncthreads();
#pragma unroll 1
    for (int first = 0; first < kReferenceRows; first += LargeRows::kRows) {
        const unsigned large = large_of_warps[first / 32] >> first % 32;
        if ((large & 0xffff) == 0) continue;
        LargeRows(attention, arguments, block.head, first_row + first)
            .find(parts, [&](int found, float reference, float lse_log2) {
                if (large >> (found - first_row - first) & 1)
                    store(found, reference, row_lse_log2(lse_log2, true));
            });
    }
}
