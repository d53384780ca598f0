// sin and cos of any float within 2 ULP, tan within 4. CUDA's own functions inline a loop over
// digits of 2/pi at each use; an unrolled kernel would have one for every element and take three
// times as long to compile.
#pragma once

// An angle of at most about pi/4, and the number of quarter turns before it, modulo 4.
struct flexc_Turns {
    float angle;
    unsigned quarters;
};

// Up to here, pi/2 in three parts is exact enough for the reduction.
constexpr float kFarAngle = 71476.0f;

__device__ inline flexc_Turns flexc_near_turns(float x) {
    constexpr float kRounding = 0x1.8p23f; // adding it leaves a whole number in the low bits
    const float rounded = fmaf(x, 0.636619747f, kRounding);
    const float quarters = rounded - kRounding;
    float angle = fmaf(quarters, -1.57079601f, x);
    angle = fmaf(quarters, -3.13916473e-7f, angle);
    angle = fmaf(quarters, -5.39030253e-15f, angle);
    return {angle, __float_as_uint(rounded)};
}

__device__ inline float flexc_sine_of(flexc_Turns turns) {
    const float angle = turns.angle, square = angle * angle;
    float sine = fmaf(square, -1.95746450e-4f, 8.33270326e-3f);
    sine = fmaf(sine, square, -1.66666627e-1f);
    sine = fmaf(square * angle, sine, angle);
    float cosine = fmaf(square, 2.45463598e-5f, -1.38879242e-3f);
    cosine = fmaf(cosine, square, 4.16666567e-2f);
    cosine = fmaf(square * square, cosine, fmaf(square, -0.5f, 1.0f));
    const float value = (turns.quarters & 1) != 0 ? cosine : sine;
    return __uint_as_float(__float_as_uint(value) ^ (turns.quarters << 30 & 0x80000000u));
}

// sin(x + quarters pi/2) of a large or infinite x, or NaN. Not inlined, so that it is compiled
// once.
static __device__ __noinline__ float flexc_far_sine(float x, unsigned quarters) {
    // 1 / (2 pi): 32 zeros, then the bits behind the point.
    static constexpr unsigned kTurn[] = {0u,          0x28be60dbu, 0x9391054au, 0x7f09d5f4u,
                                         0x7d4d3770u, 0x36d8a566u, 0x4f10e410u, 0x7f9458eau};
    const unsigned bits = __float_as_uint(x), size = bits & 0x7fffffffu;
    if (size >= 0x7f800000u) return __uint_as_float(0x7fffffffu);
    // x = digits 2^(shift - 32). Higher bits of 1 / (2 pi) than those used give whole turns.
    const unsigned digits = size << 8 | 0x80000000u, shift = (size >> 23) - 126;
    const unsigned* from = kTurn + (shift >> 5);
    const unsigned high = __funnelshift_l(from[1], from[0], shift);
    const unsigned middle = __funnelshift_l(from[2], from[1], shift);
    const unsigned low = __funnelshift_l(from[3], from[2], shift);
    const unsigned long long turns = (static_cast<unsigned long long>(digits * high) << 32) +
                                     static_cast<unsigned long long>(digits) * middle +
                                     __umulhi(digits, low); // in units of 2^-64
    const unsigned count = static_cast<unsigned>((turns + (1ull << 61)) >> 62);
    const auto rest =
        static_cast<long long>(turns - (static_cast<unsigned long long>(count) << 62));
    const auto angle = static_cast<float>(static_cast<double>(rest) * 0x1.921fb54442d18p-62);
    const bool minus = bits != size;
    return flexc_sine_of({minus ? -angle : angle, (minus ? 0 - count : count) + quarters});
}

__device__ inline float flexc_shifted_sine(float x, unsigned quarters) {
    flexc_Turns turns = flexc_near_turns(x);
    turns.quarters += quarters;
    return fabsf(x) < kFarAngle ? flexc_sine_of(turns) : flexc_far_sine(x, quarters);
}
__device__ inline float flexc_sin(float x) { return flexc_shifted_sine(x, 0); }
__device__ inline float flexc_cos(float x) { return flexc_shifted_sine(x, 1); }
__device__ inline float flexc_tan(float x) { return flexc_sin(x) / flexc_cos(x); }
