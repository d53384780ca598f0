// Fast base-2 functions of the device, and reductions over the four threads that share a row.
#pragma once

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// For exponents from here on, score * log2(e) rounded on its own differs so much from the same
// product inside an FMA that the largest weight of a row would no longer round to 1 in 16 bits.
constexpr float kLargeExponent = 0x1p14f;
constexpr float kMostFinite = 0x1.fffffep127f;

__device__ inline float negative_infinity() { return __int_as_float(static_cast<int>(0xff800000)); }

// Returns x if the bit is set, else -inf. A single asm statement, as NVVM needs three times as long
// to compile the equivalent C++.
__device__ inline float if_visible(float x, unsigned visible, int bit) {
    asm("{\n.reg .pred p;\n.reg .b32 b;\nand.b32 b, %1, %2;\nsetp.eq.u32 p, b, 0;\n"
        "selp.f32 %0, 0fff800000, %0, p;\n}"
        : "+f"(x)
        : "r"(visible), "r"(1u << bit));
    return x;
}
// The same, but else `hidden`.
__device__ inline float if_visible(float x, unsigned visible, int bit, float hidden) {
    asm("{\n.reg .pred p;\n.reg .b32 b;\nand.b32 b, %1, %2;\nsetp.eq.u32 p, b, 0;\n"
        "selp.f32 %0, %3, %0, p;\n}"
        : "+f"(x)
        : "r"(visible), "r"(1u << bit), "f"(hidden));
    return x;
}

// Relative error below 2^-22; 0 at -inf.
__device__ inline float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// A product that overflows becomes the largest finite float instead of infinity.
__device__ inline float multiply_finite(float x, float y) { return __fmul_rz(x, y); }
__device__ inline float log2_fast(float x) {
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// The same, but subnormal numbers are treated as zeros.
__device__ inline float log2_flushed(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Relative error below 2^-22. sqrtf() branches for each element.
__device__ inline float sqrt_fast(float x) {
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// The same, but subnormal numbers are treated as zeros.
__device__ inline float sqrt_flushed(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float rsqrt_flushed(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Relative error below 2^-10.9.
__device__ inline float tanh_fast(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
