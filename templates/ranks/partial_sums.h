// Merges results over parts of the keys, one part at a time: keeps for each row the largest lse so
// far, and the weight and outputs relative to it. Host and device use the same functions.
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

// State of every row, [batch, heads, rows]. If the weight is 0, outputs and largest are undefined.
struct PartialSums {
    float* outputs;  // [..., columns], weighted
    float* largest;  // lse
    double* weights; // sum of e^(lse - largest)
    long long heads, rows;
    int columns;
};

// A result over some of the keys, for some heads and rows: [batch, heads, rows], and o with
// columns; contiguous.
struct Part {
    const float *o, *lse; // o null: the sums' outputs and largest are the part, and weights follow
    long long first_head, heads, first_row, rows;
    long long count; // of all rows of all heads and batches

    // Index of a row among the rows of the sums.
    FLEXC_SHARED long long place(long long row, const PartialSums& sums) const {
        const long long head = row / rows, b = head / heads;
        return (b * sums.heads + first_head + head % heads) * sums.rows + first_row + row % rows;
    }
};

// The update of a row: outputs = outputs * of_sum + of_part * o. A term whose factor is 0 is not
// read.
struct Merged {
    float largest;
    double weight;
    float of_sum, of_part;
};
// lse must not be -inf: such a part adds nothing.
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

// The same for a part whose lse may be -inf, or null for no part.
FLEXC_SHARED Merged merge_last(float largest, double weight, const float* lse) {
    if (lse == nullptr || *lse == no_lse()) return {largest, weight, 1, 0};
    return merge(largest, weight, *lse);
}
// Applies the update to one output. A term whose factor is 0 is not read.
FLEXC_SHARED float merged_output(const Merged& merged, const float* sum, const float* part) {
    const float of_sum = merged.of_sum == 0 ? 0 : *sum * merged.of_sum;
    return merged.of_part == 0 ? of_sum : of_sum + merged.of_part * *part;
}

// log_of() is the lse of a row that sees something, divisor() what its outputs are divided by. A
// sink adds its weight to the divisor.
FLEXC_SHARED double log_of(float largest, double weight) {
    return static_cast<double>(largest) + log(weight);
}
FLEXC_SHARED double divisor(double lse, double weight, const float* sink) {
    return sink == nullptr ? weight : weight * (1 + exp(static_cast<double>(*sink) - lse));
}

// Output of some rows of the sums, all heads, in the types and layouts of the caller.
struct FinishedRows {
    enum Type : int { kF32, kF16, kBf16 };

    PartialSums sums;
    // The last part of these rows, all heads, contiguous, which has not been merged; null if there
    // is none.
    const float *part_o, *part_lse;
    const float* sinks; // one for each row of the sums; null: there are none
    long long batch, first_row, rows;
    char *o, *lse; // lse may be null
    // Strides in bytes: batch, head, row and column.
    long long o_strides[4], lse_strides[3];
    Type o_type;
};

} // namespace ranks
