// Gradients of reads by any index: each element's part is added to memory by itself.
#pragma once

#include "sm90/gradients/sum.cuh"

namespace sm90 {

template <> struct SumOf<mod::Sum::element> : NoSum {
    template <typename Sums>
    static __device__ void add(int gradient, float d_read, const mod::At& at, int, int, Sums&) {
        sm90::add(at, gradient, d_read);
    }
};

} // namespace sm90
