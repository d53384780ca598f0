// Stands in for the device file of the same name.
#pragma once

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLargeExponent = 0x1p14f;
constexpr float kMostFinite = 0x1.fffffep127f;
constexpr float kLn2 = 0.6931471805599453f;

inline float exp2_fast(float x) { return std::exp2(x); }
inline float multiply_finite(float x, float y) { return __fmul_rz(x, y); }
inline float log2_fast(float x) { return std::log2(x); }
inline float log2_flushed(float x) { return std::log2(x); }
// As far off as the instruction may be.
inline float rsqrt_flushed(float x) { return static_cast<float>(1 / std::sqrt(x) * (1 + 0x1p-23)); }

inline float sqrt_fast(float x) { return std::sqrt(x); }
inline float sqrt_flushed(float x) { return std::fabs(x) < 0x1p-126F ? 0 * x : std::sqrt(x); }

inline float negative_infinity() { return -std::numeric_limits<float>::infinity(); }
inline float if_visible(float x, unsigned visible, int bit) {
    return visible >> bit & 1 ? x : negative_infinity();
}
inline float if_visible(float x, unsigned visible, int bit, float hidden) {
    return visible >> bit & 1 ? x : hidden;
}
inline float tanh_fast(float x) { return std::tanh(x); }
inline float reciprocal_fast(float x) { return 1 / x; }
// Of one thread's columns alone.
inline float quad_max(float x) { return x; }
inline float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
