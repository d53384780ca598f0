// Adds the sums of a warp's lanes to memory together.
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

} // namespace sm90
