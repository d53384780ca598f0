// Epilogue of the forward kernel: divides the output by the rows' sums of weights, and stores it
// with lse and the rows' largest scores.
#pragma once

#include "common/select.h"
#include "sm80/key_value_scales.cuh"
#include "sm80/score_mod.cuh"
#include "sm80/softmax.cuh"
#include "sm80/tile_order.cuh"

namespace sm80 {

// Converts a row's maximum to a score: it may be one of products before scaling.
__device__ inline float score_of(const AttentionArguments& attention, float maximum) {
    return scales_early(attention) ? maximum : maximum * attention.scale;
}

__device__ inline void store_max_score(const AttentionArguments& attention,
                                       const SequenceLength& length, int h, int row,
                                       float maximum) {
    if (mod::kReturnsMaxScores && attention.max_scores.data)
        *query_plane<float>(attention.max_scores, length, h).at(row, 0) =
            score_of(attention, maximum);
}

// The sink, whose weight is added to a row's sum at the end.
struct NoSink {
    static __device__ float add(const AttentionArguments&, const mod::Arguments&,
                                const SequenceLength&, int h, int row, float maximum, float sum) {
        return sum;
    }
};
struct SinkOfProgram {
    static __device__ float add(const AttentionArguments& attention,
                                const mod::Arguments& arguments, const SequenceLength& length,
                                int h, int row, float maximum, float sum) {
        const float sink =
            mod::Sink::value(arguments, length.b(), h, h / (attention.heads / attention.kv_heads),
                             length.q_idx(row));
        return sum + exp2_fast((sink - score_of(attention, maximum)) * kLog2E);
    }
};
using Sink = Select<mod::Sink::kExists, SinkOfProgram, NoSink>;

// Shared memory for one warp's rows of the output.
using Staging = Tile<float, kWarpRows, mod::kHeadDimV>;

// Writes row i of a thread's output times `factor`, or zeros, to a row of `staging`.
__device__ inline void stage_row(const Staging& staging, int row, const Output& output, int i,
                                 float factor, bool is_zero = false) {
    constexpr int kAtOnce = kKeysAreNarrow ? 2 : 1; // fragments of columns
    const int lane = lane_index();
    const auto number = [&](int column, int j) {
        return is_zero ? 0 : output[i / 2][column][i % 2 * 2 + j] * factor;
    };
#pragma unroll
    for (int column = 0; column < kValueColumns; column += kAtOnce) {
        const unsigned to = staging.at(row, 8 * column + lane % 4 * (2 * kAtOnce));
        if constexpr (kKeysAreNarrow)
            store_shared(to, number(column, 0), number(column + 1, 0), number(column, 1),
                         number(column + 1, 1));
        else
            store_shared(to, number(column, 0), number(column, 1));
    }
}

// first_row: the first of this warp's rows.
__device__ inline void store_output(const AttentionArguments& attention,
                                    const mod::Arguments& arguments, const SequenceLength& length,
                                    int h, int first_row, const Softmax& softmax,
                                    const KeyValueScales& scales, const Output& output,
                                    Shared shared) {
    const int lane = lane_index(), warp = static_cast<int>(threadIdx.x) / 32;
    const Staging staging{shared.base + warp * Staging::kBytes};
    const Plane<float> lse = query_plane<float>(attention.lse, length, h);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        const int row = first_row + 8 * i + lane / 4;
        const float sum = quad_sum(softmax.sum[i]);
        // Unused rows of a request get zeros and an lse of -inf, whatever the program computes
        // there.
        const bool is_unused = !mod::Layouts::kAreDense && row >= length.queries();
        const bool nothing_visible = softmax.maximum[i] == negative_infinity() || is_unused;
        const float whole =
            is_unused ? 1
                      : Sink::add(attention, arguments, length, h, row, softmax.maximum[i], sum);
        const float factor = nothing_visible ? 0 : reciprocal_fast(whole) * scales.of_output();
        stage_row(staging, 8 * i + lane / 4, output, i, factor, is_unused);
        if (attention.lse.data && lane % 4 == 0 && row < length.query_rows())
            *lse.at(row, 0) = nothing_visible ? negative_infinity() : softmax.lse(i, sum);
        if (lane % 4 == 0 && row < length.query_rows())
            store_max_score(attention, length, h, row,
                            nothing_visible ? negative_infinity() : softmax.maximum[i]);
    }
    __syncwarp();
    if (attention.o_flags & kOutputF32)
        store_rows(query_plane<float>(attention.o, length, h), staging, first_row,
                   length.query_rows());
    else
        store_rows(query_plane<Element>(attention.o, length, h), staging, first_row,
                   length.query_rows());
}

// Stores the output of the block's tile. The tile is computed again, so that it takes no registers
// in the main loop.
__device__ inline void store_output(const AttentionArguments& attention,
                                    const mod::Arguments& arguments, const Softmax& softmax,
                                    const KeyValueScales& scales, const Output& output,
                                    Shared shared) {
    const BlockTile block = query_tile_of(attention, block_index_again());
    const int warp = static_cast<int>(threadIdx.x) / 32;
    store_output(attention, arguments, SequenceLength(attention, block.head / attention.heads),
                 block.head % attention.heads, block.tile * mod::kQueryTile + warp * kWarpRows,
                 softmax, scales, output, shared);
}

} // namespace sm80
