// Copies rows from shared memory to a tensor without TMA, which would write whole boxes.
#pragma once

#include "common/arguments.h"
#include "sm90/tma.cuh"
#include "sm90/warpgroup.cuh"

namespace sm90 {

// A warp stores the first `rows` of 16 rows of kColumns, which lie in swizzled panels.
template <int kColumns, int kPanelBytes>
__device__ inline void copy_rows(const TensorArgument& tensor, int head, long long first_row,
                                 int rows, unsigned memory) {
    constexpr int kChunk = 16, kChunks = kColumns * 2 / kChunk; // bytes; of a row
    constexpr int kPanelChunks = 8, kPitch = kPanelChunks * kChunk;
    mod::Element* const to = static_cast<mod::Element*>(tensor.data) + head * tensor.stride_h +
                             first_row * tensor.stride_s;
    const int lane = computed_again(static_cast<int>(threadIdx.x) % 32);
#pragma unroll 1
    for (int i = lane; i < rows * kChunks; i += 32) {
        const int row = i / kChunks, chunk = i % kChunks;
        int words[4];
        load_shared(memory + chunk / kPanelChunks * kPanelBytes + row * kPitch +
                        (chunk % kPanelChunks ^ row % kPanelChunks) * kChunk,
                    words[0], words[1], words[2], words[3]);
        store_words(to + row * tensor.stride_s + chunk * (kChunk / 2), words);
    }
}

} // namespace sm90
