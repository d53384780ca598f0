// Adds the sums of a warp's lanes, or of a block's threads, to memory together.
#pragma once

#include "mod.cuh"

namespace sm90 {

// Adds each lane's sum at its address; null adds nothing. Lanes often share an address: then one of
// them adds the sum of all.
template <typename Sum> __device__ inline void add_by_warp(Sum* to, float sum) {
    int same = 0;
    __match_all_sync(0xffffffffu, reinterpret_cast<unsigned long long>(to), &same);
    if (same) sum = flexc_warp_sum(sum);
    if (to != nullptr && (!same || threadIdx.x % 32 == 0)) flexc_accumulate(to, sum);
}

// Adds the sum of all threads of a block of kWarps warps, whose address is the same.
template <int kWarps, typename Sum> __device__ inline void add_by_block(Sum* to, float sum) {
    __shared__ float of_warps[kWarps];
    sum = flexc_warp_sum(sum);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0 && to != nullptr) {
        float total = 0;
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp)
            total += of_warps[warp];
        flexc_accumulate(to, total);
    }
    __syncthreads();
}

} // namespace sm90
