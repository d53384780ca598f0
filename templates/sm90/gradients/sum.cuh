// How gradients of captured buffers are summed, by what the index of a read depends on. Each way is
// a policy in a file of its own; here are the default and what they share.
//
// Most ways add each element's part in the consumer warpgroups: `add`, to registers, which `flush`
// empties when the queries of a head have passed. Sums over distances, grids, a 2-D key index,
// tables and shifted reads, and of narrow dense biases, are found by warps of the producer
// warpgroup in the tile of dS or in one beside it: TileWarps in tile_warps.cuh says which. Sums
// over whole rows are found by other kernels. Shared memory of any of them is in backward_layout.h.
#pragma once

#include "common/math.cuh"
#include "sm90/backward_layout.cuh"

namespace sm90 {

constexpr int kGradientSlots = mod::kGradients > 0 ? mod::kGradients : 1;

// The default: does nothing for an element, nor after the queries.
struct NoSum {
    // Adds an element's part of a read's gradient. key, j: which of the thread's keys and queries.
    template <typename Sums>
    static __device__ void add(int gradient, float d_read, const mod::At& at, int key, int j,
                               Sums& sums) {}
    // Adds sums to memory after the queries of a head. elements: those of the thread's keys, for
    // any query.
    template <typename Sums, typename Elements>
    static __device__ void flush(int gradient, Sums& sums, const Elements& elements) {}
};
template <mod::Sum kSum> struct SumOf;
// These are found in the tile of dS, or by kernels that pass over rows.
template <> struct SumOf<mod::Sum::quotient> : NoSum {};
template <> struct SumOf<mod::Sum::remainder> : NoSum {};
template <> struct SumOf<mod::Sum::shifted> : NoSum {};
template <> struct SumOf<mod::Sum::row> : NoSum {};

template <int kIndex> struct Gradient {
    static constexpr int kValue = kIndex;
    using Sum = SumOf<mod::ReadGradients::sum_of(kIndex)>;
};
// Calls visit(Gradient<i>) for each gradient.
template <int kIndex = 0, typename Visit> __device__ inline void visit_gradients(Visit visit) {
    if constexpr (kIndex < mod::kGradients) {
        visit(Gradient<kIndex>{});
        visit_gradients<kIndex + 1>(visit);
    }
}

__device__ inline void add(const mod::At& at, int gradient, float d_read) {
    if (d_read == 0) return;
    if (auto* const to = mod::ReadGradients::address(at, gradient)) flexc_accumulate(to, d_read);
}

// to[i] += x[i] for two or four floats, whose address is aligned to all of them.
template <int kCount> __device__ inline void accumulate_together(float* to, const float* x) {
    if constexpr (kCount == 4)
        atomicAdd(reinterpret_cast<float4*>(to), float4{x[0], x[1], x[2], x[3]});
    else
        atomicAdd(reinterpret_cast<float2*>(to), float2{x[0], x[1]});
}

} // namespace sm90
