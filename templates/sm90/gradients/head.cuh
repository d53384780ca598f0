// Gradients of reads that are one number for a head: a thread sums its elements in a register while
// queries pass by, and a warp adds once for each head.
#pragma once

#include "sm90/gradients/sum.cuh"

namespace sm90 {

struct HeadSums {
    float of[kGradientSlots];
};

template <> struct SumOf<mod::Sum::head> : NoSum {
    template <typename Sums>
    static __device__ void add(int gradient, float d_read, const mod::At&, int, int, Sums& sums) {
        sums.registers.head.of[gradient] += d_read;
    }
    template <typename Sums, typename Elements>
    static __device__ void flush(int gradient, Sums& sums, const Elements& elements) {
        const float total = flexc_warp_sum(sums.head.of[gradient]);
        if (threadIdx.x % 32 == 0) sm90::add(elements.at_key(mod::Row{}, 0), gradient, total);
    }
};

} // namespace sm90
