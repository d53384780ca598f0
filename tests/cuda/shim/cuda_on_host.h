// The part of CUDA C++ that generated code uses, for a host compiler.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#define __device__
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))

using std::max;
using std::min;

struct ThreadIndex {
    unsigned x = 0, y = 0, z = 0;
};
static ThreadIndex threadIdx, blockIdx;

inline float __uint_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
inline unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, sizeof x);
    return bits;
}
inline float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }

// The device's conversions saturate.
template <typename Int> Int saturated(float x) {
    constexpr float kEnd = sizeof(Int) == 4 ? 0x1p31f : 0x1p63f;
    if (x >= kEnd) return std::numeric_limits<Int>::max();
    if (x < -kEnd) return std::numeric_limits<Int>::min();
    return static_cast<Int>(x);
}
inline long long __float2ll_rz(float x) { return saturated<long long>(x); }
inline int __float2int_rz(float x) { return saturated<int>(x); }

template <typename T> T __ldg(const T* p) { return *p; }
inline float atomicAdd(float* p, float x) {
    const float before = *p;
    *p += x;
    return before;
}
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
inline void atomicAdd(float2* p, float2 x) { *p = {p->x + x.x, p->y + x.y}; }
inline void atomicAdd(float4* p, float4 x) {
    *p = {p->x + x.x, p->y + x.y, p->z + x.z, p->w + x.w};
}
inline float __fmul_rn(float x, float y) { return x * y; }
inline void atomicAdd(unsigned long long* p, unsigned long long x) { *p += x; }
inline void atomicOr(unsigned* p, unsigned x) { *p |= x; }
// One thread plays the warp: the others hold zeros.
inline float __shfl_xor_sync(unsigned, float, int) { return 0; }
template <typename T> T __shfl_sync(unsigned, T, int) { return 0; }
inline void __syncwarp() {}
inline int __ffs(unsigned x) { return __builtin_ffs(static_cast<int>(x)); }
inline unsigned __ballot_sync(unsigned, bool) { return 0; }
