// Adds the sink to the statistics of a row before a backward, for kernels that visit each row once:
// weights become those of a softmax that includes the sink, and the sink gets its own gradient. See
// passes/sink.h for the formulas.
#pragma once

#include "common/arguments.h"
#include "common/math.cuh"
#include "common/row_lse.cuh"
#include "sm90/warp_additions.cuh"

// A row. `place` is its index among the statistics of all rows, `q_idx` its position as the program
// sees it. Rows that do not exist are passed as the last row of their head, and nothing is changed.
struct RowOfSink {
    int b, h, row, q_idx;
    long long place;
    bool exists;
};

// Changes the statistics of the row so that weights include the sink, and scales d_lse, which
// refers to weights without the sink, to match. Returns the weight of the sink.
__device__ inline float add_sink(const AttentionArguments& attention,
                                 const mod::Arguments& arguments, const RowOfSink& at,
                                 float& d_lse) {
    // From here on, d_lse would overflow; the weights are then negligible beside it.
    constexpr float kMostBesideLse = 56;
    if (!at.exists) return 0;
    float& origin = attention.row_statistics[row_statistic_place(at.place, kRowLseLog2)];
    const float reference = attention.row_statistics[row_statistic_place(at.place, kRowReference)];
    const float sink = mod::Sink::value(arguments, at.b, at.h,
                                        at.h / (attention.heads / attention.kv_heads), at.q_idx);
    const float natural =
        mod::Sink::kReferencesAreProducts ? reference * attention.scale : reference;
    const float above = (sink - natural) * kLog2E - origin;
    const float less = exp2_fast(-fabsf(above)); // the smaller of both, for the larger
    float more = fmaxf(above, 0) + log2_fast(1 + less);
    if (d_lse != 0) {
        more = fminf(more, kMostBesideLse);
        d_lse *= exp2_fast(more);
    }
    origin = row_lse_log2(origin + more, has_large_rows(origin));
    return (above > 0 ? 1 : less) / (1 + less);
}

// Called by all lanes of a warp.
__device__ inline void add_sink_gradients(const AttentionArguments& attention,
                                          const mod::Arguments& arguments, const RowOfSink& at,
                                          float d_sink) {
    mod::Sink::visit_gradients(arguments, at.b, at.h, at.h / (attention.heads / attention.kv_heads),
                               at.q_idx, [&](auto* to, float partial) {
                                   sm90::add_by_warp(to, d_sink == 0 ? 0 : partial * d_sink);
                               });
}
