// A transpose of words among four lanes.
#pragma once

// Returns word t of each of four lanes, for lane t. Lanes that have every fourth word of 64 bytes
// get 16 neighbouring bytes each, and the other way round.
__device__ inline uint4 transpose_quad(const unsigned (&words)[4]) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    const auto swapped = [](bool mine_is_second, unsigned first, unsigned second, int distance,
                            unsigned& a, unsigned& b) {
        const unsigned got =
            __shfl_xor_sync(0xffffffffu, mine_is_second ? first : second, distance);
        a = mine_is_second ? got : first;
        b = mine_is_second ? second : got;
    };
    unsigned a[4], x[4];
    swapped(odd, words[0], words[1], 1, a[0], a[1]);
    swapped(odd, words[2], words[3], 1, a[2], a[3]);
    swapped(high, a[0], a[2], 2, x[0], x[2]);
    swapped(high, a[1], a[3], 2, x[1], x[3]);
    return {x[0], x[1], x[2], x[3]};
}
