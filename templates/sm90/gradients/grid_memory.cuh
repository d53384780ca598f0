// Where sums over parts of diagonals go to.
#pragma once

#include "sm90/borrows.cuh"
#include "sm90/gradients/distance_sums.cuh"
#include "sm90/gradients/sum.cuh"

namespace sm90 {

struct GridMemory {
    // Of a form and four distances that follow each other. head: over batch and heads.
    static __device__ void add(const KernelArguments& attention, int head, int form, int distance,
                               const float (&sums)[4]) {
        const long long vector = static_cast<long long>(head) * kBorrowForms + form;
        put(distance_sums(attention) + vector * distance_count(attention) +
                padded(attention.kv_len) + distance,
            sums);
    }

  private:
    static __device__ void put(float* to, const float (&sums)[4]) {
        if (sums[0] != 0 || sums[1] != 0 || sums[2] != 0 || sums[3] != 0)
            accumulate_together<4>(to, sums);
    }
    static __device__ void put(exact::Sum* to, const float (&sums)[4]) {
#pragma unroll 1
        for (int i = 0; i < 4; ++i)
            if (sums[i] != 0) flexc_accumulate(to + i, sums[i]);
    }
};

} // namespace sm90
