// What generated code calls: the operators of a program that C++ has no spelling for.
//
// The flexc_fast_ functions may be off by a few f32 roundings: far below what the 16-bit element
// types can hold. Kernels of those types use them where no step (floor, comparison, int) follows.
#pragma once

#include "common/eight_bits.cuh"
#include "common/element.cuh"
#include "common/instructions.cuh"
#include "common/math.cuh"
#include "common/special_functions.cuh"
#include "common/trigonometry.cuh"
#include "policies/all.cuh"

// --- integers: int where ranges allow it, else long long
// -------------------------------------------

__device__ inline long long flexc_wide(int x) { return x; }
__device__ inline int flexc_narrow(long long x) { return static_cast<int>(x); }

template <typename Int> __device__ inline Int flexc_floor_divide(Int x, Int y) {
    if (y == 0) return 0;
    if (y == -1) return -x;
    const Int quotient = x / y;
    return quotient - (quotient * y != x && (x < 0) != (y < 0) ? 1 : 0);
}
template <typename Int> __device__ inline Int flexc_floor_modulo(Int x, Int y) {
    if (y == 0 || y == -1) return 0;
    const Int remainder = x % y;
    return remainder != 0 && (remainder < 0) != (y < 0) ? remainder + y : remainder;
}
// Of numbers that are not negative, by one that is positive: no sign has to be looked at.
__device__ inline int flexc_quotient(int x, int y) {
    return static_cast<int>(static_cast<unsigned>(x) / static_cast<unsigned>(y));
}
__device__ inline int flexc_remainder(int x, int y) {
    return static_cast<int>(static_cast<unsigned>(x) % static_cast<unsigned>(y));
}
// A negative exponent gives the whole part of the quotient, and 0 for x = 0.
template <typename Int> __device__ inline Int flexc_integer_power(Int x, Int y) {
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
    Int result = 1;
    for (; y != 0; y >>= 1) {
        if (y & 1) result *= x;
        if (y > 1) x *= x;
    }
    return result;
}
template <typename Int> __device__ inline Int flexc_shift_left(Int x, Int y) {
    constexpr int kBits = 8 * static_cast<int>(sizeof(Int));
    return y < 0 || y >= kBits ? Int(0) : Int(static_cast<unsigned long long>(x) << y);
}
template <typename Int> __device__ inline Int flexc_shift_right(Int x, Int y) {
    constexpr int kBits = 8 * static_cast<int>(sizeof(Int));
    return x >> (y < 0 || y >= kBits ? Int(kBits - 1) : y);
}
template <typename Int> __device__ inline Int flexc_abs(Int x) { return x < 0 ? -x : x; }
// The absolute value of x - y, which has 33 bits.
__device__ inline long long flexc_distance(int x, int y) {
    return static_cast<long long>(__sad(x, y, 0u));
}
__device__ inline int flexc_sign(int x) { return (x > 0) - (x < 0); }
__device__ inline long long flexc_sign(long long x) { return (x > 0) - (x < 0); }
template <typename Int> __device__ inline Int flexc_min(Int x, Int y) { return x < y ? x : y; }
template <typename Int> __device__ inline Int flexc_max(Int x, Int y) { return x < y ? y : x; }

// Truncates and saturates; NaN gives 0.
__device__ inline long long flexc_to_int(float x) { return x != x ? 0 : __float2ll_rz(x); }
__device__ inline int flexc_to_narrow_int(float x) { return x != x ? 0 : __float2int_rz(x); }

// --- reals
// -----------------------------------------------------------------------------------------

__device__ inline float flexc_infinity() { return __uint_as_float(0x7f800000u); }
__device__ inline float flexc_nan() { return __uint_as_float(0x7fffffffu); }

__device__ inline float flexc_min(float x, float y) { return min_nan(x, y); }
__device__ inline float flexc_max(float x, float y) { return max_nan(x, y); }
__device__ inline float flexc_sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; }
__device__ inline float flexc_floor(float x) { return floorf(x); }
__device__ inline float flexc_divide(float x, float y) { return x / y; }
__device__ inline float flexc_fast_divide(float x, float y) { return divide_full(x, y); }
// What numbers are multiplied by that would be divided by y. Finite, but for 0.
__device__ inline float flexc_reciprocal(float y) {
    const float inverse = 1 / y;
    return y != 0 && fabsf(inverse) > kMostFinite ? copysignf(kMostFinite, y) : inverse;
}
// The floor of the true quotient: a quotient that was rounded up to a whole number is one too big.
__device__ inline float flexc_floor_divide(float x, float y) {
    const float quotient = floorf(x / y);
    const float rest = fmaf(-quotient, y, x);
    return (y > 0 ? rest < 0 : rest > 0) ? quotient - 1 : quotient;
}
// A call: fmodf() brings a loop and divisions to each use, and a kernel has one for each element of
// a thread.
static __device__ __noinline__ float flexc_remainder(float x, float y) { return fmodf(x, y); }
// Python's: the sign of the divisor.
__device__ inline float flexc_modulo(float x, float y) {
    const float remainder = flexc_remainder(x, y);
    return remainder != 0 && (remainder < 0) != (y < 0) ? remainder + y : remainder;
}

// sqrtf(x) by the steps that it takes for most numbers, among which x is.
__device__ inline float flexc_usual_sqrt(float x) {
    const float inverse = rsqrt_flushed(x);
    const float about = x * inverse;
    return fmaf(fmaf(-about, about, x), 0.5f * inverse, about);
}
// flexc_to_narrow_int() of sqrtf(x). Numbers for which sqrtf() branches have the same whole number
// as what they are clamped to.
__device__ inline int flexc_int_of_sqrt(float x) {
    return __float2int_rz(
        flexc_usual_sqrt(fminf(fmaxf(x, 0x1p-101F), 0x1.fffffep127F))); // NaN is the former
}
// The least of that and most, which is 0 ... 2^20: in the lowest bits of a float from 2 on.
// Conversions have the unit of special functions, which roots and exponentials are as much as it
// does.
__device__ inline int flexc_bounded_int_of_sqrt(float x, int most) {
    const float end = static_cast<float>(most) + 0.5F;
    const float root = flexc_usual_sqrt(fminf(fmaxf(x, 0x1p-101F), end * end));
    return static_cast<int>(__float_as_uint(__fmaf_rz(root, 0x1p-22F, 2.0F)) - 0x40000000u);
}

__device__ inline float flexc_exp2(float x) { return exp2f(x); }
__device__ inline float flexc_log(float x) { return logf(x); }
// flexc_to_narrow_int() of log2(x) * factor, found with roundings of less than 2^-21 of either
// each. What is so near to a whole number, but 0, that these could carry it across may be wrong: a
// doubt.
__device__ inline int flexc_int_of_log(float x, float factor, bool& doubt) {
    constexpr float kRounder = 0x1.8p23F, kError = 0x1p-19F;
    const float about = log2_flushed(x) * factor;
    const float nearest = (about + kRounder) - kRounder;
    const float error = fmaf(fabsf(about), kError, fabsf(factor) * kError);
    doubt = doubt | (!(fabsf(about - nearest) > error) & (nearest != 0));
    return __float2int_rz(about);
}
__device__ inline float flexc_log2(float x) { return log2f(x); }
__device__ inline float flexc_pow(float x, float y) { return powf(x, y); }

// --- captured arrays
// -------------------------------------------------------------------------------

// Each buffer type as the program sees it.
__device__ inline float flexc_read(const double* p) { return static_cast<float>(__ldg(p)); }
__device__ inline float flexc_read(const float* p) { return __ldg(p); }
template <typename Float16> __device__ inline float flexc_read_16(const Float16* p) {
    Float16 x;
    x.bits = __ldg(&p->bits);
    return flexc_to_float(x);
}
__device__ inline float flexc_read(const flexc_f16* p) { return flexc_read_16(p); }
__device__ inline float flexc_read(const flexc_bf16* p) { return flexc_read_16(p); }
__device__ inline long long flexc_read(const long long* p) { return __ldg(p); }
__device__ inline int flexc_read(const int* p) { return __ldg(p); }
__device__ inline int flexc_read(const short* p) { return __ldg(p); }
__device__ inline int flexc_read(const signed char* p) { return __ldg(p); }
__device__ inline int flexc_read(const unsigned char* p) { return __ldg(p); }
__device__ inline bool flexc_read(const bool* p) {
    return __ldg(reinterpret_cast<const unsigned char*>(p)) != 0;
}

// The same, or 0, without a branch.
__device__ inline float flexc_read_if(bool inside, const double* p) {
    return static_cast<float>(load_if(inside, p));
}
__device__ inline float flexc_read_if(bool inside, const float* p) { return load_if(inside, p); }
template <typename Float16> __device__ inline float flexc_read_if(bool inside, const Float16* p) {
    return flexc_to_float(Float16{load_if(inside, &p->bits)});
}

// A part of the offset of a buffer whose offsets have room in 32 bits.
__device__ inline int flexc_step(int index, long long stride) {
    return static_cast<int>(static_cast<unsigned>(index) * static_cast<unsigned>(stride));
}

// Numbers of entries, which are at least 1; what does not fit in 32 bits is as good as any such.
__device__ inline long long flexc_bounded_product(long long x, long long y) {
    const long long most = 1ll << 31;
    return flexc_min(flexc_min(x, most) * flexc_min(y, most), most);
}
// Sums of 32 bits of which only the last is an index.
__device__ inline int flexc_wrapped_sum(int x, int y) {
    return static_cast<int>(static_cast<unsigned>(x) + static_cast<unsigned>(y));
}
__device__ inline int flexc_wrapped_difference(int x, int y) {
    return static_cast<int>(static_cast<unsigned>(x) - static_cast<unsigned>(y));
}
// Addresses in shared memory: so many bytes further, and so many floats.
__device__ inline unsigned flexc_shifted(unsigned address, int bytes) {
    return address + static_cast<unsigned>(bytes);
}
__device__ inline unsigned flexc_entry(unsigned address, int entries) {
    return address + 4 * static_cast<unsigned>(entries);
}
// Of a table in shared memory; where it is not inside, 0.
__device__ inline float flexc_read_table(unsigned address) { return load_shared_float(address); }
__device__ inline float flexc_read_table_if(bool inside, unsigned address) {
    return load_shared_float_if(inside, address);
}

// An address that stays in registers: found again for each element, it would take most of a read's
// instructions.
template <typename T> __device__ inline const T* flexc_kept(const T* address) {
    asm volatile("" : "+l"(address));
    return address;
}

// 0 <= index < extent
__device__ inline bool flexc_inside(long long index, long long extent) {
    return static_cast<unsigned long long>(index) < static_cast<unsigned long long>(extent);
}
__device__ inline bool flexc_inside(int index, int extent) {
    return static_cast<unsigned>(index) < static_cast<unsigned>(extent);
}

// Adding zero changes nothing, and gradients are often zero where a read was not used.
__device__ inline void flexc_accumulate(float* p, float x) {
    if (x != 0) atomicAdd(p, x);
}
__device__ inline float flexc_warp_sum(float x) {
    for (int distance = 16; distance != 0; distance /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}
