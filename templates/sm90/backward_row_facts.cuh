// What a tile's queries have in shared memory: lse, references and delta.
#pragma once

#include "common/row_lse.cuh"
#include "sm90/backward_layout.cuh"

namespace sm90 {

// From the first query that is the warpgroup's.
struct RowFacts {
    unsigned base;
    // Of query first + 8 * pair and the next; the first is one of eight.
    __device__ void load(RowFact fact, int first, int pair, float (&of)[2]) const {
        const int row = 8 * pair;
        load_shared(base + 4 * (row / 64 * (64 * kRowFacts) + fact * 64 + row % 64 + first), of);
    }
};

} // namespace sm90
