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
// *p of a constant buffer, or 0, without a branch: loads that follow each other are in flight
// together.
__device__ inline unsigned short load_if(bool condition, const unsigned short* p) {
    unsigned short x;
    asm("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\nmov.b16 %0, 0;\n@p ld.global.nc.b16 %0, [%1];\n}"
        : "=h"(x)
        : "l"(p), "r"(static_cast<int>(condition)));
    return x;
}
__device__ inline float load_if(bool condition, const float* p) {
    float x;
    asm("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\nmov.b32 %0, 0;\n@p ld.global.nc.b32 %0, [%1];\n}"
        : "=f"(x)
        : "l"(p), "r"(static_cast<int>(condition)));
    return x;
}
__device__ inline double load_if(bool condition, const double* p) {
    double x;
    asm("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\nmov.b64 %0, 0;\n@p ld.global.nc.b64 %0, [%1];\n}"
        : "=d"(x)
        : "l"(p), "r"(static_cast<int>(condition)));
    return x;
}
