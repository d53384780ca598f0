// Turns products into scores, element by element. For programs without a score mod and without
// checks, the generated functions do nothing.
#pragma once

#include "sm80/forward_tiles.cuh"

namespace sm80 {

// Whether products are multiplied by the scale before the softmax. Otherwise the scale is part of
// the exponent, which needs a positive scale, as the maximum is then one of unscaled products.
__device__ inline bool scales_early(const AttentionArguments& attention) {
    return mod::kHasScoreMod || mod::kReportsOutOfRange || !(attention.scale > 0);
}

template <typename OwnRows>
__device__ inline void apply_score_mod(Scores& scores, float scale, const Surroundings& around,
                                       const OwnRows& rows, int first_kv) {
    constexpr int kGroup = 4; // columns whose reads may be in flight together
#pragma unroll
    for (int group = 0; group < 2 * kKeyColumns; group += kGroup) {
        if (first_kv + 4 * group >= around.length.keys()) break;
#pragma unroll
        for (int column = group; column < group + kGroup; ++column)
            rows.visit_column(column, around, first_kv,
                              [&](int row, const mod::At& at, bool inside) {
                                  float& score = element_of(scores, row, column);
                                  score *= scale;
                                  if (inside) mod::report_out_of_range(at, score);
                                  score = mod::score(at, score);
                              });
    }
}

} // namespace sm80
