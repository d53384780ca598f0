// The 16-bit floats as storage types, and their conversions to and from float.
#pragma once

struct flexc_f16 {
    unsigned short bits;
};
struct flexc_bf16 {
    unsigned short bits;
};

__device__ inline float flexc_to_float(float x) { return x; }
__device__ inline float flexc_to_float(flexc_bf16 x) {
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
__device__ inline float flexc_to_float(flexc_f16 x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
}

// The first and the second of two adjacent elements in one word.
__device__ inline float flexc_first(flexc_bf16, unsigned pair) {
    return __uint_as_float(pair << 16);
}
__device__ inline float flexc_second(flexc_bf16, unsigned pair) {
    return __uint_as_float(pair & 0xffff0000u);
}
__device__ inline float flexc_first(flexc_f16, unsigned pair) {
    return flexc_to_float(flexc_f16{static_cast<unsigned short>(pair & 0xffffu)});
}
__device__ inline float flexc_second(flexc_f16, unsigned pair) {
    return flexc_to_float(flexc_f16{static_cast<unsigned short>(pair >> 16)});
}

// Round to nearest even.
template <typename T> __device__ T flexc_from_float(float x);
template <> __device__ inline float flexc_from_float<float>(float x) { return x; }
template <> __device__ inline double flexc_from_float<double>(float x) { return x; }
template <> __device__ inline flexc_bf16 flexc_from_float<flexc_bf16>(float x) {
    flexc_bf16 narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    return narrow;
}
template <> __device__ inline flexc_f16 flexc_from_float<flexc_f16>(float x) {
    flexc_f16 narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    return narrow;
}
