// Sums of gradients of captured buffers, by what the index of a read depends on.
#pragma once

#include "common/math.cuh"
#include "sm90/backward_layout.cuh"

namespace sm90 {

constexpr int kGradientSlots = mod::kGradients > 0 ? mod::kGradients : 1;

// Of a head, or of a head and a key: in registers while queries pass by.
struct GradientSums {
    float of_head[kGradientSlots];
    float of_key[kGradientSlots][2];
};
// Of a head and a query: over the two keys that a thread has.
struct QuerySums {
    float of_query[kGradientSlots][kScoreQueries / 4];
};

__device__ inline void add(const mod::At& at, int gradient, float d_read) {
    if (d_read == 0) return;
    if (auto* const to = mod::gradient_address(at, gradient)) flexc_accumulate(to, d_read);
}

__device__ inline void add_float(float* to, float x) {
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}
// to[i] += x[i], of two or four floats aligned to all of them.
template <int kCount> __device__ inline void accumulate_together(float* to, const float* x) {
    if constexpr (kCount == 4)
        atomicAdd(reinterpret_cast<float4*>(to), float4{x[0], x[1], x[2], x[3]});
    else
        atomicAdd(reinterpret_cast<float2*>(to), float2{x[0], x[1]});
}

} // namespace sm90
