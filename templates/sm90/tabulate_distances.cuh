// Computes, before the kernel that uses them, values that depend on q and kv only by their
// difference, for every distance. One thread computes one distance of one head.
//
// convert(at, value) returns a value in the units in which it is used.
#pragma once

#include "sm90/distance.cuh"

namespace sm90 {

// Stores the value of an entry in all entries of four numbers that have it: a thread's accumulators
// are in two neighbouring columns of two rows, of which the second is eight behind the first.
__device__ inline void store_start(float* vector, int count, int index, float value) {
    constexpr int kRowsApart = 8;
    const auto store = [&](int i, int part, float x) {
        if (0 <= i && i < count) vector[kEntryFloats * i + part] = x;
    };
    store(index, 0, value);
    store(index - 1, 1, value);
    store(index + kRowsApart, 2, value);
    store(index + kRowsApart - 1, 3, value);
    // At the ends of the vector there is no such entry.
    if (index == count - 1) store(index, 1, 0);
    if (index < kRowsApart) store(index, 2, 0);
    if (index < kRowsApart - 1) store(index, 3, 0);
}

template <typename Convert>
__device__ void tabulate_distances(const KernelArguments& attention,
                                   const mod::Arguments& arguments, int block, Convert convert) {
    const Entry entry = Entry::of_distance(attention, block);
    entry.visit(attention, arguments, [&](const mod::At& at) {
        if constexpr (mod::TabulatedVectors::kDistancesComeFirst) {
            const float value =
                entry.exists ? convert(at, mod::TabulatedVectors::distance_value(at, 0)) : 0;
            return store_start(distance_vector(attention, entry.head, 0),
                               distance_count(attention), entry.index, value);
        }
#pragma unroll
        for (int i = 0; i < mod::TabulatedVectors::kByDistance; ++i) {
            const float value =
                entry.exists ? convert(at, mod::TabulatedVectors::distance_value(at, i)) : 0;
            const int vector = i * mod::TabulatedVectors::kDistanceCopies;
            distance_vector(attention, entry.head, vector)[entry.index] = value;
            if constexpr (mod::TabulatedVectors::kDistanceCopies == 2) {
                // The second copy begins with the second entry.
                float* const to = distance_vector(attention, entry.head, vector + 1);
                if (entry.index > 0) to[entry.index - 1] = value;
                if (entry.index + 1 == distance_count(attention)) to[entry.index] = 0;
            }
        }
    });
}

} // namespace sm90
