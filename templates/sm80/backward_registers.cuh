// Decides where registers are short in a backward kernel, and how it saves them, as far as the
// plan's candidate says (kSavesRegisters): fewer rows at a time, fewer still, one element after the
// other.
#pragma once

#include "sm80/backward_tiles.cuh"

namespace sm80 {

// Whether a mod has values that belong to a column alone.
constexpr bool kHasColumnValues = !__is_empty(mod::Column);

// Returns how many queries have scores, or dq, in registers at a time, beside dk and dv, so that
// nothing spills: rows are halved until a thread holds no more than `most` values.
constexpr int rows_at_a_time(int columns, int most) {
    int rows = mod::kQueryTile;
    while (rows % 32 == 0 && rows * columns > most * kThreads)
        rows /= 2;
    return rows;
}
constexpr bool kCrowded = mod::kKeyTile * (mod::kHeadDim + mod::kHeadDimV) >= 128 * kThreads;
constexpr int kVaryingGradients =
    mod::RowGradients::kCount + mod::ColumnGradients::kCount + mod::kElementGradients;
constexpr bool kGreedy = mod::kSavesRegisters > 0 || kHasColumnValues ||
                         kVaryingGradients > 0; // a mod that needs many
constexpr bool kIsWrittenOnce = mod::ScoreDerivative::kIsWrittenOnce;
// What enters terms takes registers, too.
constexpr bool kHasFewScores = kIsWrittenOnce || mod::TermSums::kExist ||
                               mod::AddedGradients::kPartial >= 0 || (kCrowded && kGreedy);
constexpr int kMostScores = mod::kSavesRegisters >= 2 ? 8 : kHasFewScores ? 16 : 32;
constexpr int kScoreRows = rows_at_a_time(mod::kKeyTile, kMostScores);
constexpr int kGradientRows =
    rows_at_a_time(mod::kHeadDim, kCrowded&& mod::kHeadDim <= 128 ? 16 : 32);

// Returns x, but hides that from the compiler: what an element's reads need is computed from it for
// that element alone, not for all at once.
__device__ inline int found_again(int x) {
    if constexpr (mod::kSavesRegisters > 2) asm volatile("" : "+r"(x) : : "memory");
    return x;
}

} // namespace sm80
