// Gradients of reads that are one number for a key and a head: a register for each of a thread's
// two keys while queries pass by, then one addition for the four threads that have the same keys.
#pragma once

#include "sm90/gradients/sum.cuh"

namespace sm90 {

struct KeySums {
    float of[kGradientSlots][2];
};

template <> struct SumOf<mod::Sum::key> : NoSum {
    template <typename Sums>
    static __device__ void add(int gradient, float d_read, const mod::At&, int key, int,
                               Sums& sums) {
        sums.registers.key.of[gradient][key] += d_read;
    }
    template <typename Sums, typename Elements>
    static __device__ void flush(int gradient, Sums& sums, const Elements& elements) {
#pragma unroll
        for (int key = 0; key < 2; ++key) {
            const float total = quad_sum(sums.key.of[gradient][key]);
            if (threadIdx.x % 4 == 0 && elements.has_key(key))
                sm90::add(elements.at_key(mod::Row{}, key), gradient, total);
        }
    }
};

} // namespace sm90
