// Called by generated code: operators of a program that C++ has no operator for.
#pragma once

#include "common/eight_bits.cuh"
#include "common/element.cuh"
#include "common/instructions.cuh"
#include "common/math.cuh"
#include "common/reciprocal.h"
#include "common/special_functions.cuh"
#include "common/trigonometry.cuh"
#include "policies/all.cuh"

// Of a function that is not inlined and only computes: calls whose result nobody uses go. Older
// compilers do not know it.
#ifdef __nv_pure__
#define FLEXC_PURE __nv_pure__
#else
#define FLEXC_PURE
#endif

// --- integers: int where ranges allow it, else long long

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
// By a divisor that is the same for a launch, see common/reciprocal.h; `sign` is the divisor's.
__device__ inline long long flexc_floor_divide(int x, Reciprocal reciprocal, int sign) {
    const int signed_x = x * sign;
    // The quotient of a negative number is the complement of that of its complement.
    const int complement = signed_x >> 31;
    const unsigned size = static_cast<unsigned>(signed_x ^ complement);
    return static_cast<int>(__umulhi(size << 1, reciprocal.multiplier) >> reciprocal.shift) ^
           complement;
}
__device__ inline long long flexc_floor_modulo(int x, Reciprocal reciprocal, int sign,
                                               long long divisor) {
    return divisor == 0 ? 0 : x - flexc_floor_divide(x, reciprocal, sign) * divisor;
}
// x >= 0 and y > 0, so that unsigned division can be used.
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
// The absolute value of x - y, which needs 33 bits.
__device__ inline long long flexc_distance(int x, int y) {
    return static_cast<long long>(__sad(x, y, 0u));
}
__device__ inline int flexc_sign(int x) { return (x > 0) - (x < 0); }
__device__ inline long long flexc_sign(long long x) { return (x > 0) - (x < 0); }
template <typename Int> __device__ inline Int flexc_min(Int x, Int y) { return x < y ? x : y; }
template <typename Int> __device__ inline Int flexc_max(Int x, Int y) { return x < y ? y : x; }
// min(max(x - y, least), most) for least <= 0 <= most. The difference of x and y needs 33 bits;
// that of y and x clamped to what is next to y does not.
__device__ inline int flexc_clamped_difference(int x, int y, int least, int most) {
    constexpr int kMost = 2147483647, kLeast = -kMost - 1;
    const int from = flexc_max(y, kLeast - least) + least, to = flexc_min(y, kMost - most) + most;
    return flexc_min(flexc_max(x, from), to) - y;
}

// Truncates and saturates; NaN gives 0.
__device__ inline long long flexc_to_int(float x) { return x != x ? 0 : __float2ll_rz(x); }
__device__ inline int flexc_to_narrow_int(float x) { return x != x ? 0 : __float2int_rz(x); }

// --- reals

__device__ inline float flexc_infinity() { return __uint_as_float(0x7f800000u); }
__device__ inline float flexc_nan() { return __uint_as_float(0x7fffffffu); }

__device__ inline float flexc_min(float x, float y) { return min_nan(x, y); }
__device__ inline float flexc_max(float x, float y) { return max_nan(x, y); }
__device__ inline float flexc_sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; }
__device__ inline float flexc_floor(float x) { return floorf(x); }
__device__ inline float flexc_divide(float x, float y) { return x / y; }
__device__ inline float flexc_fast_divide(float x, float y) { return divide_full(x, y); }
// The reciprocal of y, by which numbers are multiplied instead of being divided by y. Finite unless
// y is 0.
__device__ inline float flexc_reciprocal(float y) {
    const float inverse = 1 / y;
    return y != 0 && fabsf(inverse) > kMostFinite ? copysignf(kMostFinite, y) : inverse;
}
// The floor of the exact quotient: if x / y was rounded up to an integer, its floor is too large by
// one.
__device__ inline float flexc_floor_divide(float x, float y) {
    const float quotient = floorf(x / y);
    const float rest = fmaf(-quotient, y, x);
    return (y > 0 ? rest < 0 : rest > 0) ? quotient - 1 : quotient;
}
// Not inlined: fmodf() contains a loop and divisions, and a kernel would have a copy for each
// element of a thread.
static __device__ __noinline__ float flexc_remainder(float x, float y) { return fmodf(x, y); }
// As in Python: the result has the sign of the divisor.
__device__ inline float flexc_modulo(float x, float y) {
    const float remainder = flexc_remainder(x, y);
    return remainder != 0 && (remainder < 0) != (y < 0) ? remainder + y : remainder;
}

// sqrtf(x) for numbers for which sqrtf() does not branch: the same instructions.
__device__ inline float flexc_usual_sqrt(float x) {
    const float inverse = rsqrt_flushed(x);
    const float about = x * inverse;
    return fmaf(fmaf(-about, about, x), 0.5f * inverse, about);
}
// flexc_to_narrow_int(sqrtf(x)). x is clamped to numbers for which sqrtf() does not branch; the
// integer is the same.
__device__ inline int flexc_int_of_sqrt(float x) {
    return __float2int_rz(
        flexc_usual_sqrt(fminf(fmaxf(x, 0x1p-101F), 0x1.fffffep127F))); // NaN is the former
}
// min(flexc_int_of_sqrt(x), most) for most in [0, 2^20]. The integer is taken from the lowest bits
// of a float in [2, 4), because conversions would compete with roots and exponentials for the
// special function unit.
__device__ inline int flexc_bounded_int_of_sqrt(float x, int most) {
    const float end = static_cast<float>(most) + 0.5F;
    const float root = flexc_usual_sqrt(fminf(fmaxf(x, 0x1p-101F), end * end));
    return static_cast<int>(__float_as_uint(__fmaf_rz(root, 0x1p-22F, 2.0F)) - 0x40000000u);
}

__device__ inline float flexc_exp2(float x) { return exp2f(x); }
__device__ inline float flexc_log(float x) { return logf(x); }
// flexc_to_narrow_int(log2(x) * factor), where the log2 and the product each have a relative error
// below 2^-21. Sets `doubt` if the result is so close to a nonzero integer that the errors could
// change it.
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

// Reads an element of a captured buffer and converts it to the type that the program sees.
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

// Reads an element if `inside`, else returns 0, without a branch.
__device__ inline float flexc_read_if(bool inside, const double* p) {
    return static_cast<float>(load_if(inside, p));
}
__device__ inline float flexc_read_if(bool inside, const float* p) { return load_if(inside, p); }
template <typename Float16> __device__ inline float flexc_read_if(bool inside, const Float16* p) {
    return flexc_to_float(Float16{load_if(inside, &p->bits)});
}

// Reads as flexc_read() does. What nobody uses is not read, and its address not computed.
__device__ inline float flexc_read_if_used(const double* p) {
    return static_cast<float>(load_if_used(p));
}
__device__ inline float flexc_read_if_used(const float* p) { return load_if_used(p); }
template <typename Float16> __device__ inline float flexc_read_if_used(const Float16* p) {
    return flexc_to_float(Float16{load_if_used(&p->bits)});
}
__device__ inline long long flexc_read_if_used(const long long* p) { return load_if_used(p); }
__device__ inline int flexc_read_if_used(const int* p) { return load_if_used(p); }
__device__ inline int flexc_read_if_used(const short* p) { return load_if_used(p); }
__device__ inline int flexc_read_if_used(const signed char* p) { return load_if_used(p); }
__device__ inline int flexc_read_if_used(const unsigned char* p) { return load_if_used(p); }
__device__ inline bool flexc_read_if_used(const bool* p) {
    return load_if_used(reinterpret_cast<const unsigned char*>(p)) != 0;
}

// index * stride: part of an offset, in a buffer whose offsets fit into 32 bits.
__device__ inline int flexc_step(int index, long long stride) {
    return static_cast<int>(static_cast<unsigned>(index) * static_cast<unsigned>(stride));
}

// The product of numbers of entries, each at least 1, capped at 2^31.
__device__ inline long long flexc_bounded_product(long long x, long long y) {
    const long long most = 1ll << 31;
    return flexc_min(flexc_min(x, most) * flexc_min(y, most), most);
}
// Sums and differences that may wrap: only the final result is an index.
__device__ inline int flexc_wrapped_sum(int x, int y) {
    return static_cast<int>(static_cast<unsigned>(x) + static_cast<unsigned>(y));
}
__device__ inline int flexc_wrapped_difference(int x, int y) {
    return static_cast<int>(static_cast<unsigned>(x) - static_cast<unsigned>(y));
}
// Shared memory addresses: `bytes` bytes further, and `entries` floats further.
__device__ inline unsigned flexc_shifted(unsigned address, int bytes) {
    return address + static_cast<unsigned>(bytes);
}
__device__ inline unsigned flexc_entry(unsigned address, int entries) {
    return address + 4 * static_cast<unsigned>(entries);
}
// Reads a float of a table in shared memory; 0 if it is not inside.
__device__ inline float flexc_read_table(unsigned address) { return load_shared_float(address); }
__device__ inline float flexc_read_table_if(bool inside, unsigned address) {
    return load_shared_float_if(inside, address);
}

// Keeps an address in registers. Computing it again for each element would cost more than the read.
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
// flexc_inside(x + y, extent), which is below 2^31, by the lower half of the sum: its distance from
// the first sum in [0, extent) that some y gives.
__device__ inline bool flexc_sum_inside(long long x, int y, int extent) {
    constexpr long long kHalf = 1ll << 31;
    const long long first = flexc_max(x, kHalf) - kHalf, end = flexc_min(x, extent - kHalf) + kHalf;
    return static_cast<unsigned>(x) + static_cast<unsigned>(y) - static_cast<unsigned>(first) <
           static_cast<unsigned>(flexc_max(end - first, 0ll));
}

// Skips zeros: gradients of reads that an element does not use are often zero.
__device__ inline void flexc_accumulate(float* p, float x) {
    if (x != 0) atomicAdd(p, x);
}
__device__ inline float flexc_warp_sum(float x) {
    for (int distance = 16; distance != 0; distance /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}
