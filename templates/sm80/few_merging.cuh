// Joins what forward_few.cu computed of parts of requests into results.
#pragma once

#include "sm80/few_block.cuh"

namespace sm80 {

// A block computes the results of some rows of a request with few queries, if that has several
// parts, and clears rows that the request does not use. A row is joined by one of its warps or, if
// it has many parts, by several, each of which joins some parts. Blocks with nothing to do end at
// once, and make room while parts are still computed; the first one waits in any case, as what
// follows this kernel needs its results.
extern "C" __global__ void __launch_bounds__(32 * kMergingWarps, 2)
    flexc_merge_parts(const __grid_constant__ KernelArguments attention,
                      const __grid_constant__ mod::Arguments arguments) {
    const int group = attention.heads / attention.kv_heads;
    // Each head of keys of a request has as many blocks; a few may be left over.
    const int heads = attention.batch * attention.kv_heads;
    const int blocks = flexc_quotient(static_cast<int>(gridDim.x), max(heads, 1));
    const int head = flexc_quotient(static_cast<int>(blockIdx.x), blocks);
    if (head >= heads) {
        if (blockIdx.x == 0) wait_for_kernel_ahead();
        return;
    }
    const int block = static_cast<int>(blockIdx.x) - head * blocks;
    const int b = flexc_quotient(head, attention.kv_heads);
    const int h_kv = head - b * attention.kv_heads;
    const SequenceLength length(attention, b);
    const auto [first_part, count] = parts_of_request(attention, length);
    const long long rows = static_cast<long long>(length.query_rows()) * group;
    const bool is_few = mod::Layouts::kAreDense || has_few_rows(length, group);
    const bool has_work =
        is_few && block < rows && (count > 1 || length.queries() < length.query_rows());
    if (!has_work && blockIdx.x > 0) return;
    wait_for_kernel_ahead();
    if (!has_work) return;
    const PartialResults parts(attention);
    const float to_log2 = (scales_early(attention) ? 1 : attention.scale) * kLog2E;
    const int warps = warps_of_row(count), warp = warp_index();
    const int of_block = warp / warps, of_row = warp - of_block * warps; // row, then warp
    const int first = first_part + count * of_row / warps,
              own = first_part + count * (of_row + 1) / warps - first;
    const auto of_warp = [&](int warp) {
        return RowOfWarp(shared_address(shared_memory) + warp * Staging::kPitch);
    };

    // A block's rows are those of all blocks in turn, so that a few rows have blocks of their own.
#pragma unroll 1
    for (long long row = block + of_block * blocks; row - of_block * blocks < rows;
         row += static_cast<long long>(kMergingWarps / warps) * blocks) {
        const PackedRow packed(static_cast<int>(row), h_kv, group);
        const bool is_used = row < rows && packed.query < length.queries();
        if (row < rows && !is_used && of_row == 0) clear_row(attention, length, packed);
        const bool is_joined = is_used && count > 1;
        WholeRow whole;
        if (is_joined)
            whole.add<kPartsAtOnce>(own, to_log2, [&](int i) {
                return RowOfPart{parts, first + i, h_kv, static_cast<int>(row)};
            });
        if (warps > 1) {
            of_warp(warp).store(whole);
            __syncthreads();
            whole = {};
            if (is_joined && of_row == 0)
                whole.add<kMergingWarps>(warps, to_log2, [&](int i) { return of_warp(warp + i); });
            __syncthreads(); // the results make room for those of the next rows
        }
        if (is_joined && of_row == 0) store_whole_row(attention, arguments, length, packed, whole);
    }
}

} // namespace sm80
