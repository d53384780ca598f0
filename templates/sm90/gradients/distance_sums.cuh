// Vectors of sums for each distance q - kv.
#pragma once

#include "common/exact_sum.cuh"
#include "sm90/distance.cuh"

namespace sm90 {

// Type of dS summed over diagonals, to which blocks add in any order.
template <bool kExact> struct DistanceSumOf {
    using Type = float;
};
template <> struct DistanceSumOf<true> {
    using Type = exact::Sum;
};
using DistanceSum = DistanceSumOf<mod::kDeterministic>::Type;
__device__ inline DistanceSum* distance_sums(const KernelArguments& attention) {
    return reinterpret_cast<DistanceSum*>(attention.distance_sums);
}

} // namespace sm90
