// Computes, before the kernel that uses them, values that depend on q and kv only by their
// difference, for every distance. One thread computes one distance of one head.
#pragma once

#include "sm90/distance.cuh"

namespace sm90 {

__device__ inline void expand_distances(const KernelArguments& attention,
                                        const mod::Arguments& arguments, int block) {
    const Entry entry = Entry::of_distance(attention, block);
    entry.visit(attention, arguments, [&](const mod::At& at) {
#pragma unroll
        for (int i = 0; i < mod::TabulatedVectors::kByDistance; ++i) {
            const float value = entry.exists ? mod::TabulatedVectors::distance_value(at, i) : 0;
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
