// Sums of several values of each lane over lanes of a warp, by exchanges in which a lane keeps half
// of the values: so that each sum ends in few lanes.
#pragma once

// Adds the values of the lane at kDistance. Each of the two lanes does so for half of the values:
// the first keeps the first kHalf, the other those behind, at the same places.
template <int kHalf, int kDistance, int kCount>
__device__ inline void exchange(float (&sums)[kCount], int lane) {
    const bool upper = (lane & kDistance) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
        const float mine = upper ? sums[i + kHalf] : sums[i];
        const float other = upper ? sums[i] : sums[i + kHalf];
        sums[i] = mine + __shfl_xor_sync(0xffffffffu, other, kDistance);
    }
}

// Sums kCount values, a power of two, over the lanes at distances kDistance, kDistance / 2, ...,
// kLeast of each other. Returns the first value whose sum the lane has; others follow it.
template <int kCount, int kDistance, int kLeast, int kLength>
__device__ inline int sum_over_lanes(float (&values)[kLength], int lane) {
    if constexpr (kDistance < kLeast) {
        return 0;
    } else if constexpr (kCount == 1) {
        values[0] += __shfl_xor_sync(0xffffffffu, values[0], kDistance);
        return sum_over_lanes<1, kDistance / 2, kLeast>(values, lane);
    } else {
        exchange<kCount / 2, kDistance>(values, lane);
        const int first = sum_over_lanes<kCount / 2, kDistance / 2, kLeast>(values, lane);
        return first + ((lane & kDistance) != 0 ? kCount / 2 : 0);
    }
}
