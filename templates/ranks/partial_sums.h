// Results over parts of the keys become one, a part at a time: for each row the largest lse so far,
// and weights and outputs relative to it. Host and device compute with the same functions.
#pragma once

#include "common/host_device.h"

#ifndef __CUDACC__
#include <cmath>
#include <limits>
#endif

namespace ranks {

// The lse of a row that sees no key.
#ifdef __CUDACC__
__device__ inline float no_lse() { return __int_as_float(static_cast<int>(0xff800000)); }
#else
inline float no_lse() { return -std::numeric_limits<float>::infinity(); }
#endif

// Of every row [batch, heads, rows]. Outputs and largest hold nothing where the weight is 0.
struct PartialSums {
    float* outputs;  // [..., columns], weighted
    float* largest;  // lse
    double* weights; // sum of e^(lse - largest)
    long long heads, rows;
    int columns;
};

// Over some of the keys, of some heads and rows: [batch, heads, rows], o with columns, without
// gaps.
struct Part {
    const float *o, *lse; // o null: the sums' outputs and largest are the part, and weights follow
    long long first_head, heads, first_row, rows;
    long long count; // of all rows of all heads and batches

    // Which of the sums' rows a row is.
    FLEXC_SHARED long long place(long long row, const PartialSums& sums) const {
        const long long head = row / rows, b = head / heads;
        return (b * sums.heads + first_head + head % heads) * sums.rows + first_row + row % rows;
    }
};

// What is done to a row: outputs = outputs * of_sum + of_part * o, unless nothing was there.
struct Merged {
    float largest;
    double weight;
    float of_sum, of_part;
};
// Not of a part whose lse is -inf, which adds nothing.
FLEXC_SHARED Merged merge(float largest, double weight, float lse) {
    if (weight == 0) return {lse, 1, 0, 1};
    const double difference = static_cast<double>(lse) - static_cast<double>(largest);
    if (difference > 0) {
        const double scale = exp(-difference);
        return {lse, weight * scale + 1, static_cast<float>(scale), 1};
    }
    const double more = exp(difference);
    return {largest, weight + more, 1, static_cast<float>(more)};
}

// With a part whose lse may be -inf, or without one.
FLEXC_SHARED Merged merge_last(float largest, double weight, const float* lse) {
    if (lse == nullptr || *lse == no_lse()) return {largest, weight, 1, 0};
    return merge(largest, weight, *lse);
}
// Outputs of both; what has no weight is not looked at.
FLEXC_SHARED float merged_output(const Merged& merged, const float* sum, const float* part) {
    const float of_sum = merged.of_sum == 0 ? 0 : *sum * merged.of_sum;
    return merged.of_part == 0 ? of_sum : of_sum + merged.of_part * *part;
}

// Of a row that has something: what its outputs are divided by. A sink takes its weight of them.
FLEXC_SHARED double log_of(float largest, double weight) {
    return static_cast<double>(largest) + log(weight);
}
FLEXC_SHARED double divisor(double lse, double weight, const float* sink) {
    return sink == nullptr ? weight : weight * (1 + exp(static_cast<double>(*sink) - lse));
}

// All heads of some rows of the sums, in the types and layouts that a caller wants.
struct FinishedRows {
    enum Type : int { kF32, kF16, kBf16 };

    PartialSums sums;
    // The part that comes last, of these rows of all heads, without gaps; null: there is none.
    const float *part_o, *part_lse;
    const float* sinks; // one for each row of the sums; null: there are none
    long long batch, first_row, rows;
    char *o, *lse; // lse may be null
    // In bytes, by batch, head, row and column.
    long long o_strides[4], lse_strides[3];
    Type o_type;
};

} // namespace ranks
