// Functions for single PTX instructions.
#pragma once

// Minimum; NaN if either operand is NaN.
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
// Asks for a line of global memory to be in the L2 cache.
__device__ inline void prefetch_line(const void* of) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(of));
}
// Adds to four adjacent floats in global memory, each atomically.
__device__ inline void add_four(float* to, float x, float y, float z, float w) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x), "f"(y), "f"(z),
                 "f"(w)
                 : "memory");
}
// Quotient with an error of at most 2 ULP over the full range.
__device__ inline float divide_full(float x, float y) {
    float z;
    asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}
__device__ inline unsigned long long multiply_add_wide(unsigned x, unsigned y,
                                                       unsigned long long z) {
    unsigned long long sum;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(sum) : "r"(x), "r"(y), "l"(z));
    return sum;
}
__device__ inline float load_shared_float(unsigned address) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address));
    return x;
}
// Loads from shared memory if the condition holds, else returns 0, without a branch.
__device__ inline float load_shared_float_if(bool condition, unsigned address) {
    float x;
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\nmov.f32 %0, 0f00000000;\n"
                 "@p ld.shared.f32 %0, [%1];\n}"
                 : "=f"(x)
                 : "r"(address), "r"(static_cast<int>(condition)));
    return x;
}
// Arithmetic on two f16 in one word.
__device__ inline unsigned add_f16x2(unsigned x, unsigned y) {
    unsigned z;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}
__device__ inline unsigned multiply_f16x2(unsigned x, unsigned y) {
    unsigned z;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}
// Sets all 16 bits of each half in which x > y, and clears the others.
__device__ inline unsigned greater_f16x2(unsigned x, unsigned y) {
    unsigned mask;
    asm("set.gt.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(x), "r"(y));
    return mask;
}
#if __CUDA_ARCH__ >= 890
// Converts four e4m3 numbers in one word to four f16 in two words.
__device__ inline void f16x4_from_e4m3x4(unsigned& first, unsigned& second, unsigned four) {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n}"
        : "=r"(first), "=r"(second)
        : "r"(four));
}
#endif
// Loads *p from read-only memory unless nobody uses it. __ldg() is volatile: it stays, and so does
// what its address takes.
#define FLEXC_LOAD_IF_USED(Type, Word, bits, constraint)                                           \
    __device__ inline Type load_if_used(const Type* p) {                                           \
        Word x;                                                                                    \
        asm("ld.global.nc." bits " %0, [%1];" : constraint(x) : "l"(p));                           \
        return static_cast<Type>(x);                                                               \
    }
FLEXC_LOAD_IF_USED(double, double, "f64", "=d")
FLEXC_LOAD_IF_USED(float, float, "f32", "=f")
FLEXC_LOAD_IF_USED(long long, long long, "s64", "=l")
FLEXC_LOAD_IF_USED(int, int, "s32", "=r")
FLEXC_LOAD_IF_USED(short, short, "s16", "=h")
FLEXC_LOAD_IF_USED(unsigned short, unsigned short, "u16", "=h")
FLEXC_LOAD_IF_USED(signed char, int, "s8", "=r")
FLEXC_LOAD_IF_USED(unsigned char, int, "u8", "=r")
#undef FLEXC_LOAD_IF_USED
// Loads *p from read-only memory if the condition holds, else gives 0, without a branch, so that
// consecutive loads overlap.
#define FLEXC_LOAD_IF(Type, bits, constraint)                                                      \
    __device__ inline Type load_if(bool condition, const Type* p) {                                \
        Type x;                                                                                    \
        asm("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\nmov." bits " %0, 0;\n"                       \
            "@p ld.global.nc." bits " %0, [%1];\n}"                                                \
            : constraint(x)                                                                        \
            : "l"(p), "r"(static_cast<int>(condition)));                                           \
        return x;                                                                                  \
    }
FLEXC_LOAD_IF(unsigned short, "b16", "=h")
FLEXC_LOAD_IF(float, "b32", "=f")
FLEXC_LOAD_IF(double, "b64", "=d")
#undef FLEXC_LOAD_IF
