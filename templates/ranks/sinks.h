// Sinks beside what was computed without them, for each row. Host and device compute with the same
// functions.
#pragma once

#include "ranks/partial_sums.h"

namespace ranks {

// Of `count` rows without gaps; d_lse may be null.
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
// lse as keys beside the sink see it, and what d_lse then is.
FLEXC_SHARED void add_sink(float sink, float& lse, float* d_lse) {
    if (lse == no_lse()) return;
    // Weights that are less than those without the sink by more than this have no say beside a
    // d_lse, which would overflow.
    constexpr double kMost = 56 * 0.693147180559945309417;
    double more = log_more(sink, lse);
    if (d_lse != nullptr && *d_lse != 0) {
        more = more < kMost ? more : kMost;
        *d_lse = static_cast<float>(*d_lse * exp(more));
    }
    lse = static_cast<float>(lse + more);
}

// What sinks learn: o and d_out [count, columns] without gaps, f32.
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
