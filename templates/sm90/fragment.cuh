// Where a thread's scores of a tile of keys are, in the accumulators of QK's MMAs.
#pragma once

#include "mod.cuh"

namespace sm90 {

constexpr int kScores = mod::kKeyTile / 2;    // accumulators of a thread
constexpr int kFragmentColumns = kScores / 2; // columns that they are in, of two rows each
using Scores = float[kScores];

// Accumulator i is in row 8 * fragment_row(i) and column fragment_column(i) from a thread's first.
constexpr __device__ int fragment_row(int i) { return i / 2 % 2; }
constexpr __device__ int fragment_column(int i) { return i / 4 * 8 + i % 2; }
// Return the accumulator of a row and the j-th of a thread's columns, and where that column is.
constexpr __device__ int accumulator(int row, int j) { return j / 2 * 4 + 2 * row + j % 2; }
constexpr __device__ int column_of(int j) { return j / 2 * 8 + j % 2; }

} // namespace sm90
