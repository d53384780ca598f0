// Joins what forward_few.cu computed of parts of requests into results.
#pragma once

#include "sm80/few_block.cuh"

namespace sm80 {

// A block computes the results of some rows of a request with few queries, if that has several
// parts, and clears rows that the request does not use. Each of its warps joins a row or, if there
// are many parts, some parts of the same row. Blocks with nothing to do end at once, and make room
// while parts are still computed; the first one waits in any case, as what follows this kernel
// needs its results.
extern "C" __global__ void __launch_bounds__(32 * kMergingWarps)
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
    const int first_part = length.sequence().first_part;
    const int count = attention.sequences.of(b + 1).first_part - first_part;
    constexpr int kMostOfWarp = 16; // parts of a row, of which eight are loaded at once
    const bool is_of_warp = count <= kMostOfWarp;
    const long long rows = static_cast<long long>(length.query_rows()) * group;
    const long long first_row = is_of_warp ? block * kMergingWarps : block;
    const bool has_work = has_few_rows(length.sequence(), group) && first_row < rows &&
                          (count > 1 || length.queries() < length.query_rows());
    if (!has_work && blockIdx.x > 0) return;
    wait_for_kernel_ahead();
    if (!has_work) return;
    const PartialResults parts(attention);
    const float to_log2 = (scales_early(attention) ? 1 : attention.scale) * kLog2E;
    const int warp = warp_index(), first = count * warp / kMergingWarps,
              own = count * (warp + 1) / kMergingWarps - first;

    for (long long row = is_of_warp ? first_row + warp : first_row; row < rows;
         row += is_of_warp ? blocks * kMergingWarps : blocks) {
        const PackedRow packed(static_cast<int>(row), h_kv, group);
        if (packed.query >= length.queries()) {
            if (is_of_warp || warp == 0) clear_row(attention, length, packed);
            continue;
        }
        if (count < 2) continue;
        if (is_of_warp) {
            store_whole_row(
                attention, arguments, length, packed, WholeRow(count, to_log2, [&](int i) {
                    return RowOfPart{parts, first_part + i, h_kv, static_cast<int>(row)};
                }));
            continue;
        }
        const auto of_warp = [&](int warp) {
            return RowOfWarp(shared_address(shared_memory) + warp * Staging::kPitch);
        };
        of_warp(warp).store(WholeRow(own, to_log2, [&](int i) {
            return RowOfPart{parts, first_part + first + i, h_kv, static_cast<int>(row)};
        }));
        __syncthreads();
        if (warp == 0)
            store_whole_row(attention, arguments, length, packed,
                            WholeRow(kMergingWarps, to_log2, of_warp));
        __syncthreads(); // the results make room for those of the next row
    }
}

} // namespace sm80
