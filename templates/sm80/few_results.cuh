// Merges the results of rows of requests with few queries, over warps or over parts of the keys,
// and stores them.
#pragma once

#include "common/dependence.cuh"
#include "sm80/forward_output.cuh"
#include "sm80/packed_rows.cuh"
#include "sm80/partial_results.cuh"

namespace sm80 {

__device__ inline void store_row(const AttentionArguments& attention, const SequenceLength& length,
                                 int h, int query, int column, float value) {
    if (attention.o_flags & kOutputF32)
        *query_plane<float>(attention.o, length, h).at(query, column) = value;
    else
        *query_plane<Element>(attention.o, length, h).at(query, column) =
            flexc_from_float<Element>(value);
}

// Stores lse and the largest score of a row; returns the factor that normalizes its output. Called
// by one lane for each row.
__device__ inline float finish_row(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const SequenceLength& length,
                                   int h, int query, float maximum, float sum) {
    Softmax softmax;
    softmax.start(scales_early(attention) ? 1 : attention.scale);
    softmax.maximum[0] = maximum;
    const bool nothing_visible = maximum == negative_infinity();
    if (attention.lse.data)
        *query_plane<float>(attention.lse, length, h).at(query, 0) =
            nothing_visible ? negative_infinity() : softmax.lse(0, sum);
    store_max_score(attention, length, h, query, maximum);
    if (nothing_visible) return 0;
    return reciprocal_fast(Sink::add(attention, arguments, length, h, query, maximum, sum));
}

// The result of a row over several parts of the keys, relative to the largest of their maxima. Lane
// i holds columns i, i + 32, i + 64, ...
struct WholeRow {
    static constexpr int kColumns = (mod::kHeadDimV + 31) / 32;
    float maximum = negative_infinity(), sum = 0, output[kColumns] = {};

    // Adds `count` parts, kAtOnce of which are loaded together. part(i) returns {maximum, sum,
    // output(column)} of the i-th part. If the maximum is -inf, the output is not used.
    template <int kAtOnce, typename Part> __device__ void add(int count, float to_log2, Part part) {
#pragma unroll 1
        for (int first = 0; first < count; first += kAtOnce) {
            float of_part[kAtOnce], of_sum[kAtOnce], of_output[kAtOnce][kColumns];
            const float before = maximum;
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                of_part[i] = negative_infinity();
                if (first + i >= count) continue;
                const auto from = part(first + i);
                of_part[i] = from.maximum();
                of_sum[i] = from.sum();
#pragma unroll
                for (int column = 0; column < kColumns; ++column)
                    of_output[i][column] = from.output(min(column_of(column), mod::kHeadDimV - 1));
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
                maximum = fmaxf(maximum, of_part[i]);
            if (maximum == negative_infinity()) continue;
            rescale(exp2_fast((before - maximum) * to_log2));
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                if (of_part[i] == negative_infinity()) continue;
                const float weight = exp2_fast((of_part[i] - maximum) * to_log2);
                sum += weight * of_sum[i];
#pragma unroll
                for (int column = 0; column < kColumns; ++column)
                    output[column] += weight * of_output[i][column];
            }
        }
    }
    // Calls visit(column, output) for each of this lane's columns.
    template <typename Visit> __device__ void visit(Visit visit) const {
#pragma unroll
        for (int column = 0; column < kColumns; ++column)
            if (column_of(column) < mod::kHeadDimV) visit(column_of(column), output[column]);
    }

  private:
    static __device__ int column_of(int column) { return 32 * column + lane_index(); }
    __device__ void rescale(float factor) {
        sum *= factor;
#pragma unroll
        for (int column = 0; column < kColumns; ++column)
            output[column] *= factor;
    }
};

// A row of a warp's results in shared memory: output columns, then the maximum and the sum.
struct RowOfWarp {
    unsigned at;

    __device__ explicit RowOfWarp(unsigned address) : at(address) {}
    __device__ unsigned address(int column) const { return at + 4 * column; }
    __device__ float output(int column) const { return load_shared_float(address(column)); }
    __device__ float maximum() const { return output(Staging::kPaddedColumns); }
    __device__ float sum() const { return output(Staging::kPaddedColumns + 1); }
    __device__ void store_sums(float maximum, float sum) const {
        store_shared(address(Staging::kPaddedColumns), maximum, sum);
    }
    __device__ void store(const WholeRow& row) const {
        if (lane_index() == 0) store_sums(row.maximum, row.sum);
        row.visit([&](int column, float value) { store_shared(address(column), value); });
    }
};

__device__ inline void write_results(const Staging& results, const Softmax& softmax,
                                     const Output& output, float factor) {
    const int lane = lane_index();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        const int row = 8 * i + lane / 4;
        const float sum = quad_sum(softmax.sum[i]);
        if (lane % 4 == 0) RowOfWarp(results.at(row, 0)).store_sums(softmax.maximum[i], sum);
        stage_row(results, row, output, i, factor);
    }
}

// Stores the final output of a row. Called by a whole warp.
__device__ inline void store_whole_row(const AttentionArguments& attention,
                                       const mod::Arguments& arguments,
                                       const SequenceLength& length, const PackedRow& at,
                                       const WholeRow& row) {
    float factor = 0;
    if (lane_index() == 0)
        factor = finish_row(attention, arguments, length, at.h, at.query, row.maximum, row.sum);
    factor = __shfl_sync(0xffffffffu, factor, 0);
    row.visit([&](int column, float value) {
        store_row(attention, length, at.h, at.query, column, factor * value);
    });
}

// Stores the results of a row past the end of its request: zeros, and an lse of -inf.
__device__ inline void clear_row(const AttentionArguments& attention, const SequenceLength& length,
                                 const PackedRow& at) {
    if (attention.lse.data && lane_index() == 0)
        *query_plane<float>(attention.lse, length, at.h).at(at.query, 0) = negative_infinity();
    if (lane_index() == 0) store_max_score(attention, length, at.h, at.query, negative_infinity());
    for (int column = lane_index(); column < mod::kHeadDimV; column += 32)
        store_row(attention, length, at.h, at.query, column, 0);
}

struct RowOfPart {
    const PartialResults& parts;
    int part, h_kv, row;

    __device__ float output(int column) const { return parts.output(part, h_kv, row)[column]; }
    __device__ float maximum() const { return parts.maximum(part, h_kv, row); }
    __device__ float sum() const { return parts.sum(part, h_kv, row); }
};

} // namespace sm80
