// Softmax statistics of a tile's queries in shared memory: lse, references and delta.
#pragma once

#include "common/row_lse.cuh"
#include "sm90/backward_layout.cuh"

namespace sm90 {

// base: address of the statistics of the warpgroup's first query in the tile.
struct RowStatistics {
    unsigned base;
    // Loads a statistic of query first + 8 * pair and of the next one; first is below eight.
    __device__ void load(RowStatistic statistic, int first, int pair, float (&of)[2]) const {
        const int row = 8 * pair;
        load_shared(
            base + 4 * (row / 64 * (64 * kRowStatistics) + statistic * 64 + row % 64 + first), of);
    }
    // Whether queries of the tile have references other than zero: their scores are too large for
    // one float. The same for all lanes.
    __device__ bool have_references(int first) const {
        float lse_log2[2];
        load(kRowLseLog2, first, 0, lse_log2);
        return has_large_rows(lse_log2[0]);
    }
};

} // namespace sm90
