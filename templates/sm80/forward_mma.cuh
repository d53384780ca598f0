// The two products of the forward kernel: QK and PV.
#pragma once

#include "sm80/forward_tiles.cuh"

namespace sm80 {

// scores = Q K^T, for the warp's rows of the tile, from first_row on.
__device__ inline void mma_qk(Scores& scores, QueryTile tile, int first_row, KeyTile keys) {
    const Tile<Operand, mod::kQueryTile, mod::kHeadDim> queries{tile.base};
#pragma unroll
    for (int fragment = 0; fragment < kRowFragments; ++fragment)
#pragma unroll
        for (int column = 0; column < kKeyColumns; ++column)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                scores[fragment][column][i] = 0;
#pragma unroll
    for (int k = 0; k < QueryTile::kPaddedColumns; k += kStepK<Operand>) {
        OperandA<Operand> a[kRowFragments];
#pragma unroll
        for (int fragment = 0; fragment < kRowFragments; ++fragment)
            a[fragment] = load_a_beside(keys, queries, first_row + 16 * fragment, k);
#pragma unroll
        for (int column = 0; column < kKeyColumns; column += 2) {
            OperandB<Operand> b[2];
            load_b(b, keys, 8 * column, k);
#pragma unroll
            for (int fragment = 0; fragment < kRowFragments; ++fragment) {
                multiply(scores[fragment][column], a[fragment], b[0]);
                multiply(scores[fragment][column + 1], a[fragment], b[1]);
            }
        }
    }
}

// output += P V.
__device__ inline void mma_pv(Output& output, const Scores& p, ValueTile values) {
    // The matrix units round their sums toward zero. Floats are summed over one tile there, and
    // over tiles by rounded additions, so that long sequences keep f32 accuracy.
    constexpr bool kSeparateSum = sizeof(Operand) == 4;
    constexpr int kGroup = kSeparateSum ? 2 : kValueColumns;
    constexpr int kSteps = mod::kKeyTile / kStepK<Operand>;
    OperandA<Operand> a[kSteps][kRowFragments];
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int fragment = 0; fragment < kRowFragments; ++fragment)
            a[step][fragment] = operand_from_accumulators<Operand>(p[fragment], step);
#pragma unroll
    for (int first = 0; first < kValueColumns; first += kGroup) {
        float sum[kRowFragments][kGroup][4];
#pragma unroll
        for (int fragment = 0; fragment < kRowFragments; ++fragment)
#pragma unroll
            for (int column = 0; column < kGroup; ++column)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    sum[fragment][column][i] =
                        kSeparateSum ? 0 : output[fragment][first + column][i];
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
            for (int column = 0; column < kGroup; column += 2) {
                OperandB<Operand> b[2];
                load_b_transposed(b, values, 8 * (first + column), step * kStepK<Operand>);
#pragma unroll
                for (int fragment = 0; fragment < kRowFragments; ++fragment) {
                    multiply(sum[fragment][column], a[step][fragment], b[0]);
                    multiply(sum[fragment][column + 1], a[step][fragment], b[1]);
                }
            }
        }
#pragma unroll
        for (int fragment = 0; fragment < kRowFragments; ++fragment)
#pragma unroll
            for (int column = 0; column < kGroup; ++column)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float& total = output[fragment][first + column][i];
                    total =
                        kSeparateSum ? total + sum[fragment][column][i] : sum[fragment][column][i];
                }
    }
}

} // namespace sm80
