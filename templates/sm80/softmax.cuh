// Online softmax: a running maximum and a running sum of each row; the output is rescaled when the
// maximum changes.
#pragma once

#include "common/math.cuh"
#include "sm80/forward_tiles.cuh"

namespace sm80 {

struct Softmax {
    float maximum[kRows]; // of scores so far
    float sum[kRows];     // of exp(score - maximum), this thread's columns only
    float to_log2;        // score to exponent of 2

    // scale: multiplies scores as part of the exponent.
    __device__ void start(float scale) {
        to_log2 = scale * kLog2E;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            maximum[i] = negative_infinity();
            sum[i] = 0;
        }
    }

    // Returns the natural log-sum-exp of a row. total: the row's sum over all threads' columns.
    __device__ float lse(int row, float total) const {
        const float max_log2 = __fmul_rn(maximum[row], to_log2), more = log2_fast(total);
        return fabsf(max_log2) < kLargeExponent ? (max_log2 + more) * kLn2
                                                : maximum[row] * (to_log2 * kLn2) + more * kLn2;
    }

    // Replaces the scores of some tiles by exp(score - maximum). If a maximum changes, output and
    // sums are rescaled.
    template <int kTiles> __device__ void update(Scores (&scores)[kTiles], Output& output) {
        float shrink[kRows];
        bool moved = false;
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
            const float before = maximum[row], after = larger_maximum(scores, row);
            maximum[row] = after;
            moved |= after != before;
            shrink[row] = exponentiate(scores, row, before, after);
        }
        if (__any_sync(0xffffffffu, moved)) rescale(output, shrink);
    }

  private:
    template <int kTiles>
    __device__ float larger_maximum(const Scores (&scores)[kTiles], int row) const {
        float largest = maximum[row];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
            for (int column = 0; column < kKeyColumns; ++column) {
                const float(&s)[4] = scores[tile][row / 2][column];
                largest = fmaxf(largest, fmaxf(s[row % 2 * 2], s[row % 2 * 2 + 1]));
            }
        return quad_max(largest);
    }

    // Returns the factor by which the row's earlier output and sum must be multiplied.
    template <int kTiles>
    __device__ float exponentiate(Scores (&scores)[kTiles], int row, float before, float after) {
        // Nothing visible yet: any finite max_log2 gives exp(-inf) = 0. Products are rounded alike,
        // so that a maximum that stays shrinks by exactly 1.
        const float reference = after == negative_infinity() ? 0 : after;
        float max_log2 = __fmul_rn(reference, to_log2);
        float shrink = exp2_fast(__fmul_rn(before, to_log2) - max_log2);
        if (__any_sync(0xffffffffu, fabsf(max_log2) >= kLargeExponent)) {
            shrink = exp2_fast((before - reference) * to_log2);
            max_log2 = 0;
#pragma unroll
            for (int column = 0; column < kTiles * 2 * kKeyColumns; ++column)
                element_of(scores, row, column) -= reference;
        }
        float more = 0;
#pragma unroll
        for (int column = 0; column < kTiles * 2 * kKeyColumns; ++column) {
            float& s = element_of(scores, row, column);
            s = exp2_fast(s * to_log2 - max_log2);
            more += s;
        }
        sum[row] = sum[row] * shrink + more;
        return shrink;
    }

    template <int kTiles>
    static __device__ float& element_of(Scores (&scores)[kTiles], int row, int column) {
        return sm80::element_of(scores[column / (2 * kKeyColumns)], row,
                                column % (2 * kKeyColumns));
    }

    static __device__ void rescale(Output& output, const float (&shrink)[kRows]) {
#pragma unroll
        for (int fragment = 0; fragment < kRowFragments; ++fragment)
#pragma unroll
            for (int column = 0; column < kValueColumns; ++column)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    output[fragment][column][i] *= shrink[2 * fragment + i / 2];
    }
};

} // namespace sm80
