// How a block adds the dq of its tile of keys.
#pragma once

#include "common/select.h"
#include "sm80/backward_output.cuh"
#include "sm80/backward_registers.cuh"

namespace sm80 {

// Nothing is added: the query kernel computes dq.
struct NoDq {
    template <typename DScores>
    static __device__ void add(const Surroundings&, DScores, KeyTile, int first_q) {}
};

// Adds to an f32 accumulator with atomics.
struct DqByAtomics {
    using Gradient = WarpResult<kGradientRows, mod::kHeadDim, mod::kWarps>;

    template <typename DScores>
    static __device__ void add(const Surroundings& around, DScores d_scores, KeyTile keys,
                               int first_q) {
#pragma unroll 1
        for (int row = 0; row < mod::kQueryTile; row += kGradientRows) {
            Gradient dq;
            dq.clear();
            add_product(dq, rows_of<kGradientRows>(d_scores, row), keys);
            add_rows(dq, around, first_q + row);
        }
    }

  private:
    static __device__ void add_rows(const Gradient& dq, const Surroundings& around, int first_q) {
        const auto& [attention, arguments, place, length] = around;
        const int q = first_q + Gradient::row(0);
        float* const rows = dq_accumulator_row(attention, length, computed_again(place.h), q) +
                            Gradient::first_column();
        const int columns = mod::kHeadDim - Gradient::first_column(); // that exist from there on
#pragma unroll
        for (int row = 0; row < Gradient::kRows; ++row)
#pragma unroll
            for (int unit = 0; unit < Gradient::kUnits; ++unit) {
                const bool whole = mod::kHeadDim % 16 == 0 && Gradient::has_unit(unit);
                add_atomically<mod::kHeadDim % 4 == 0>(rows + 8 * row * mod::kHeadDim + 16 * unit,
                                                       q + 8 * row >= length.queries() ? 0
                                                       : whole                         ? 16
                                                               : columns - 16 * unit,
                                                       dq.pair(row, 2 * unit),
                                                       dq.pair(row, 2 * unit + 1));
            }
    }
};
using DqWriter = Select<mod::kAccumulatesQueryGradient, DqByAtomics, NoDq>;

} // namespace sm80
