// What enters the terms of sums, for some of a thread's elements, in registers: so that what a term
// reads is loaded once for all of them.
#pragma once

template <int kCarried, int kCount> struct CarriedValues {
    static constexpr int kSlots = kCarried + 1;

    float carried[kSlots][kCount];

    // Stores and loads those of one element.
    __device__ void keep(int i, const float* values) {
#pragma unroll
        for (int value = 0; value < kCarried; ++value)
            carried[value][i] = values[value];
    }
    __device__ void load(int i, float (&values)[kSlots]) const {
#pragma unroll
        for (int value = 0; value < kCarried; ++value)
            values[value] = carried[value][i];
    }
};
