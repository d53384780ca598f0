// Adds sinks to results that were computed without them, for each row. Host and device use the same
// functions.
#pragma once

#include "ranks/partial_sums.h"

namespace ranks {

// `count` contiguous rows; d_lse may be null.
struct SinkRows {
    const float* sinks;
    float *lse, *d_lse;
    long long count;
};

// log(exp(lse) + exp(sink)) - lse.
FLEXC_SHARED double log_more(float sink, float lse) {
    const double above = static_cast<double>(sink) - static_cast<double>(lse);
    return (above > 0 ? above : 0.0) + log1p(exp(above > 0 ? -above : above));
}
// Changes lse so that weights computed from it include the sink, and scales d_lse to match.
FLEXC_SHARED void add_sink(float sink, float& lse, float* d_lse) {
    if (lse == no_lse()) return;
    // From here on d_lse would overflow; the weights are then negligible beside it.
    constexpr double kMost = 56 * 0.693147180559945309417;
    double more = log_more(sink, lse);
    if (d_lse != nullptr && *d_lse != 0) {
        more = more < kMost ? more : kMost;
        *d_lse = static_cast<float>(*d_lse * exp(more));
    }
    lse = static_cast<float>(lse + more);
}

// Arguments for the gradients of sinks: o and d_out are [count, columns], contiguous, f32.
struct SinkGradients {
    const float *sinks, *lse, *o, *d_out;
    float* gradients; // of the lse of a row's sink alone, which is the sink
    long long count;
    int columns;
};
FLEXC_SHARED float sink_gradient(float sink, float lse, double product) {
    if (lse == no_lse()) return 0;
    const double share = 1 / (1 + exp(static_cast<double>(lse) - static_cast<double>(sink)));
    return static_cast<float>(-share * product);
}

} // namespace ranks
