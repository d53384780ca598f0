// What the sink of a row changes before a backward, for kernels that pass over rows: the weights
// become those beside it, and it gets its own gradient. passes/sink.h has the formulas.
#pragma once

#include "common/arguments.h"
#include "common/math.cuh"
#include "common/row_lse.cuh"
#include "sm90/warp_additions.cuh"

// Of one row, whose place among all is that of its facts, and q_idx of the program. Those that do
// not exist come as the last of their head, and leave everything as it is.
struct RowOfSink {
    int b, h, row, q_idx;
    long long place;
    bool exists;
};

// The facts of the row become those beside the sink. `product` is rowsum(d_out * o). d_lse, which
// is of weights without the sink, becomes what gives the same with those beside it. Returns the
// sink's weight.
__device__ inline float add_sink(const AttentionArguments& attention,
                                 const mod::Arguments& arguments, const RowOfSink& at,
                                 float& d_lse) {
    // Beyond this, weights have no say beside d_lse, which would overflow.
    constexpr float kMostBesideLse = 56;
    if (!at.exists) return 0;
    float& origin = attention.row_facts[row_fact_place(at.place, kLseLog2Fact)];
    const float reference = attention.row_facts[row_fact_place(at.place, kReferenceFact)];
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

// All lanes of a warp call this.
__device__ inline void add_sink_gradients(const AttentionArguments& attention,
                                          const mod::Arguments& arguments, const RowOfSink& at,
                                          float d_sink) {
    mod::Sink::visit_gradients(arguments, at.b, at.h, at.h / (attention.heads / attention.kv_heads),
                               at.q_idx, [&](auto* to, float partial) {
                                   sm90::add_by_warp(to, d_sink == 0 ? 0 : partial * d_sink);
                               });
}
