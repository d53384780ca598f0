// Single instructions that C++ has no name for.
#pragma once

// NaN when either is NaN.
__device__ inline float min_nan(float x, float y) {
    float z;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}
__device__ inline float max_nan(float x, float y) {
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}
// Four neighbours in global memory grow, in no order.
__device__ inline void add_four(float* to, float x, float y, float z, float w) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x), "f"(y), "f"(z),
                 "f"(w)
                 : "memory");
}
// Within 2 units in the last place, over the whole range.
__device__ inline float divide_full(float x, float y) {
    float z;
    asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}
