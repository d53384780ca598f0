// Where registers are short in a backward kernel, and what it does then, as far as the plan's
// candidates go (kSavesRegisters): fewer rows at a time, fewer still, one element after the other.
#pragma once

#include "sm80/backward_tiles.cuh"

namespace sm80 {

// Whether a mod has values that belong to a column alone.
constexpr bool kHasColumnValues = !__is_empty(mod::Column);

// Scores and dq have the registers that dk and dv leave, one after the other, for so many queries
// at a time that nothing spills: rows are halved until a thread holds no more than `most` values.
constexpr int rows_at_a_time(int columns, int most) {
    int rows = mod::kQueryTile;
    while (rows % 32 == 0 && rows * columns > most * kThreads)
        rows /= 2;
    return rows;
}
constexpr bool kCrowded = mod::kKeyTile * (mod::kHeadDim + mod::kHeadDimV) >= 128 * kThreads;
constexpr bool kGreedy = mod::kSavesRegisters > 0 || kHasColumnValues ||
                         mod::kElementGradients > 0; // a mod that needs many
constexpr bool kIsWrittenOnce = mod::ScoreDerivative::kIsWrittenOnce;
constexpr int kMostScores = mod::kSavesRegisters >= 2                 ? 8
                            : kIsWrittenOnce || (kCrowded && kGreedy) ? 16
                                                                      : 32;
constexpr int kScoreRows = rows_at_a_time(mod::kKeyTile, kMostScores);
constexpr int kGradientRows =
    rows_at_a_time(mod::kHeadDim, kCrowded&& mod::kHeadDim <= 128 ? 16 : 32);

// The same value; what an element's reads need is found from it for that element alone, not for all
// at once.
__device__ inline int found_again(int x) {
    if constexpr (mod::kSavesRegisters > 2) asm volatile("" : "+r"(x) : : "memory");
    return x;
}

} // namespace sm80
