// Products whose operands are one word and an offset that is known when the kernel is compiled. The
// descriptors are put together inside each instruction's text: kept in registers, those of a kernel
// with five products would leave no room for its accumulators.
#pragma once

#include "common/element.cuh"
#include "sm90/wgmma_groups.cuh"

namespace sm90 {

// Returns the operand word that offsets are added to: the address in shared memory, and the
// distance between panels of an operand whose panels lie side by side in the product's columns.
__device__ inline unsigned operand_word(unsigned address, int panel_bytes) {
    return static_cast<unsigned>(panel_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// start(): D = A B. Its registers need hold nothing before, which an instruction that may also add
// cannot promise. add(): D += A B. Both from shared memory; rows of A and of B hold the summed
// index unless they are transposed. add_registers(): A in registers, B transposed.
template <typename E, int kColumns> struct FixedWgmma;

// clang-format off
#define FLEXC_R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FLEXC_R1 FLEXC_R0 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FLEXC_R2 FLEXC_R1 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define FLEXC_R3 FLEXC_R2 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define FLEXC_R4 FLEXC_R3 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define FLEXC_R5 FLEXC_R4 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define FLEXC_R6 FLEXC_R5 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define FLEXC_R7 FLEXC_R6 ", %56, %57, %58, %59, %60, %61, %62, %63"

#define FLEXC_EIGHT(how, i) how(d[i]), how(d[i + 1]), how(d[i + 2]), how(d[i + 3]), \
                            how(d[i + 4]), how(d[i + 5]), how(d[i + 6]), how(d[i + 7])
#define FLEXC_A0(how) FLEXC_EIGHT(how, 0)
#define FLEXC_A1(how) FLEXC_A0(how), FLEXC_EIGHT(how, 8)
#define FLEXC_A2(how) FLEXC_A1(how), FLEXC_EIGHT(how, 16)
#define FLEXC_A3(how) FLEXC_A2(how), FLEXC_EIGHT(how, 24)
#define FLEXC_A4(how) FLEXC_A3(how), FLEXC_EIGHT(how, 32)
#define FLEXC_A5(how) FLEXC_A4(how), FLEXC_EIGHT(how, 40)
#define FLEXC_A6(how) FLEXC_A5(how), FLEXC_EIGHT(how, 48)
#define FLEXC_A7(how) FLEXC_A6(how), FLEXC_EIGHT(how, 56)
#define FLEXC_NEW "=f"
#define FLEXC_KEPT "+f"

#define FLEXC_FROM_SHARED(TYPE, N, n, how, adds, X0, X1, X2, X3, X4, X5)                           \
    asm volatile("{\n.reg .b32 x, y;\n.reg .b64 a, b;\n"                                           \
                 "add.u32 x, %" #X0 ", %" #X2 ";\nadd.u32 y, %" #X1 ", %" #X3 ";\n"                \
                 "mov.b64 a, {x, 0x40000040};\nmov.b64 b, {y, 0x40000040};\n"                      \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE                   \
                 " {" FLEXC_R##n "}, a, b, " adds ", 1, 1, %" #X5 ", %" #X4 ";\n}"                 \
                 : FLEXC_A##n(how)                                                                 \
                 : "r"(a), "r"(b), "n"(kA >> 4), "n"(kB >> 4), "n"(static_cast<int>(kTransposedB)),\
                   "n"(static_cast<int>(kTransposedA)))

// N columns in n + 1 eights of accumulators; X0 ... X5 number the operands after these.
#define FLEXC_FIXED_WGMMA(E, TYPE, N, n, X0, X1, X2, X3, X4, X5)                                 \
    template <> struct FixedWgmma<E, N> {                                                        \
        template <int kA, int kB, bool kTransposedB, bool kTransposedA = false>                    \
        static __device__ void start(float (&d)[N / 2], unsigned a, unsigned b) {                  \
            FLEXC_FROM_SHARED(TYPE, N, n, FLEXC_NEW, "0", X0, X1, X2, X3, X4, X5);                 \
        }                                                                                          \
        template <int kA, int kB, bool kTransposedB, bool kTransposedA = false>                    \
        static __device__ void add(float (&d)[N / 2], unsigned a, unsigned b) {                    \
            FLEXC_FROM_SHARED(TYPE, N, n, FLEXC_KEPT, "1", X0, X1, X2, X3, X4, X5);                \
        }                                                                                          \
        template <int kB>                                                                          \
        static __device__ void add_registers(float (&d)[N / 2], const unsigned (&a)[4],            \
                                             unsigned b) {                                         \
            asm volatile("{\n.reg .b32 y;\n.reg .b64 b;\nadd.u32 y, %" #X4 ", %" #X5 ";\n"         \
                         "mov.b64 b, {y, 0x40000040};\n"                                           \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE           \
                         " {" FLEXC_R##n "}, {%" #X0 ", %" #X1 ", %" #X2 ", %" #X3 "}, b,"         \
                         " 1, 1, 1, 1;\n}"                                                         \
                         : FLEXC_A##n(FLEXC_KEPT)                                                  \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kB >> 4));      \
        }                                                                                          \
    };
#define FLEXC_FIXED_WGMMAS(...)                                                                  \
    FLEXC_FIXED_WGMMA(flexc_bf16, "bf16", __VA_ARGS__)                                           \
    FLEXC_FIXED_WGMMA(flexc_f16, "f16", __VA_ARGS__)

FLEXC_FIXED_WGMMAS(16, 0, 8, 9, 10, 11, 12, 13)
FLEXC_FIXED_WGMMAS(32, 1, 16, 17, 18, 19, 20, 21)
FLEXC_FIXED_WGMMAS(48, 2, 24, 25, 26, 27, 28, 29)
FLEXC_FIXED_WGMMAS(64, 3, 32, 33, 34, 35, 36, 37)
FLEXC_FIXED_WGMMAS(80, 4, 40, 41, 42, 43, 44, 45)
FLEXC_FIXED_WGMMAS(96, 5, 48, 49, 50, 51, 52, 53)
FLEXC_FIXED_WGMMAS(112, 6, 56, 57, 58, 59, 60, 61)
FLEXC_FIXED_WGMMAS(128, 7, 64, 65, 66, 67, 68, 69)
// clang-format on

} // namespace sm90
