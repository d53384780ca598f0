// Scores of hidden elements become -inf.
#pragma once

#include "common/mask.cuh"
#include "sm80/forward_tiles.cuh"

namespace sm80 {

// Evaluates the mask into bits first, in a loop that need not be unrolled; indexing scores in
// registers needs an unrolled one.
template <typename OwnRows>
__device__ inline void hide_scores(Scores& scores, const Surroundings& around, const OwnRows& rows,
                                   int first_kv) {
    static_assert(2 * kKeyColumns <= 32);
    constexpr int kAtOnce = Mask::kHides ? 4 : 2 * kKeyColumns;
    unsigned visible[kRows] = {};
#pragma unroll(kAtOnce)
    for (int column = 0; column < 2 * kKeyColumns; ++column)
        rows.visit_column(column, around, first_kv, [&](int row, const mod::At& at, bool inside) {
            visible[row] |= static_cast<unsigned>(inside && mod::visible(at)) << column;
        });
#pragma unroll
    for (int column = 0; column < 2 * kKeyColumns; ++column)
#pragma unroll
        for (int row = 0; row < kRows; ++row)
            if (!(visible[row] >> column & 1))
                element_of(scores, row, column) = negative_infinity();
}

} // namespace sm80
