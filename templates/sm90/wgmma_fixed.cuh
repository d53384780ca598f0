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
//
// start_four(), add_four() and add_four_registers() are four such products, of one panel's columns
// or of 64 rows, as one statement: NVVM takes long for each that names so many registers.
template <typename E, int kColumns> struct FixedWgmma;

// Distance between 16 columns of an operand, or 16 rows if it is transposed, in 16 bytes.
constexpr int step_of_operand(bool is_transposed) {
    constexpr int kElementBytes = 2, kRowOfPanelBytes = 128;
    return is_transposed ? kRowOfPanelBytes : kElementBytes;
}

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

// A product of operands from shared memory, `step` steps after the first of the statement.
#define FLEXC_PRODUCT(TYPE, N, n, adds, step, X0, X1, X2, X3, X4, X5, X6, X7)                      \
    "add.u32 x, %" #X0 ", %" #X2 " + " step " * %" #X6 ";\n"                                       \
    "add.u32 y, %" #X1 ", %" #X3 " + " step " * %" #X7 ";\n"                                       \
    "mov.b64 a, {x, 0x40000040};\nmov.b64 b, {y, 0x40000040};\n"                                   \
    "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE                                \
    " {" FLEXC_R##n "}, a, b, " adds ", 1, 1, %" #X5 ", %" #X4 ";\n"
#define FLEXC_ONE(TYPE, N, n, adds, ...) FLEXC_PRODUCT(TYPE, N, n, adds, "0", __VA_ARGS__)
#define FLEXC_FOUR(TYPE, N, n, adds, ...)                                                          \
    FLEXC_ONE(TYPE, N, n, adds, __VA_ARGS__)                                                       \
    FLEXC_PRODUCT(TYPE, N, n, "1", "1", __VA_ARGS__)                                               \
    FLEXC_PRODUCT(TYPE, N, n, "1", "2", __VA_ARGS__)                                               \
    FLEXC_PRODUCT(TYPE, N, n, "1", "3", __VA_ARGS__)
#define FLEXC_FROM_SHARED(products, n, how)                                                        \
    asm volatile("{\n.reg .b32 x, y;\n.reg .b64 a, b;\n" products "}"                              \
                 : FLEXC_A##n(how)                                                                 \
                 : "r"(a), "r"(b), "n"(kA >> 4), "n"(kB >> 4), "n"(static_cast<int>(kTransposedB)),\
                   "n"(static_cast<int>(kTransposedA)), "n"(step_of_operand(kTransposedA)),        \
                   "n"(step_of_operand(kTransposedB)))

// One whose left operand is in registers A0 ... A3.
#define FLEXC_REGISTERS(TYPE, N, n, step, A0, A1, A2, A3, B, X, S)                                 \
    "add.u32 y, %" #B ", %" #X " + " step " * %" #S ";\nmov.b64 b, {y, 0x40000040};\n"             \
    "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE                                \
    " {" FLEXC_R##n "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, b, 1, 1, 1, 1;\n"
#define FLEXC_FOUR_REGISTERS(TYPE, N, n, X0, X1, X2, X3, X4, X5, X6, X7, X8, X9, X10, X11, X12,    \
                             X13, X14, X15, X16, X17, X18)                                         \
    FLEXC_REGISTERS(TYPE, N, n, "0", X0, X1, X2, X3, X16, X17, X18)                                \
    FLEXC_REGISTERS(TYPE, N, n, "1", X4, X5, X6, X7, X16, X17, X18)                                \
    FLEXC_REGISTERS(TYPE, N, n, "2", X8, X9, X10, X11, X16, X17, X18)                              \
    FLEXC_REGISTERS(TYPE, N, n, "3", X12, X13, X14, X15, X16, X17, X18)
#define FLEXC_FROM_REGISTERS(products, n, ...)                                                     \
    asm volatile("{\n.reg .b32 y;\n.reg .b64 b;\n" products "}"                                    \
                 : FLEXC_A##n(FLEXC_KEPT)                                                          \
                 : __VA_ARGS__, "r"(b), "n"(kB >> 4), "n"(step_of_operand(true)))
#define FLEXC_FRAGMENT(a) "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3])

// N columns in n + 1 eights of accumulators; X0 ... X18 number the operands after these.
#define FLEXC_FIXED_WGMMA(E, TYPE, N, n, X0, X1, X2, X3, X4, X5, X6, X7, ...)                      \
    template <> struct FixedWgmma<E, N> {                                                          \
        template <int kA, int kB, bool kTransposedB, bool kTransposedA = false>                    \
        static __device__ void start(float (&d)[N / 2], unsigned a, unsigned b) {                  \
            FLEXC_FROM_SHARED(FLEXC_ONE(TYPE, N, n, "0", X0, X1, X2, X3, X4, X5, X6, X7), n,       \
                              FLEXC_NEW);                                                          \
        }                                                                                          \
        template <int kA, int kB, bool kTransposedB, bool kTransposedA = false>                    \
        static __device__ void add(float (&d)[N / 2], unsigned a, unsigned b) {                    \
            FLEXC_FROM_SHARED(FLEXC_ONE(TYPE, N, n, "1", X0, X1, X2, X3, X4, X5, X6, X7), n,       \
                              FLEXC_KEPT);                                                         \
        }                                                                                          \
        template <int kA, int kB, bool kTransposedB, bool kTransposedA = false>                    \
        static __device__ void start_four(float (&d)[N / 2], unsigned a, unsigned b) {             \
            FLEXC_FROM_SHARED(FLEXC_FOUR(TYPE, N, n, "0", X0, X1, X2, X3, X4, X5, X6, X7), n,      \
                              FLEXC_NEW);                                                          \
        }                                                                                          \
        template <int kA, int kB, bool kTransposedB, bool kTransposedA = false>                    \
        static __device__ void add_four(float (&d)[N / 2], unsigned a, unsigned b) {               \
            FLEXC_FROM_SHARED(FLEXC_FOUR(TYPE, N, n, "1", X0, X1, X2, X3, X4, X5, X6, X7), n,      \
                              FLEXC_KEPT);                                                         \
        }                                                                                          \
        template <int kB>                                                                          \
        static __device__ void add_registers(float (&d)[N / 2], const unsigned (&a)[4],            \
                                             unsigned b) {                                         \
            FLEXC_FROM_REGISTERS(FLEXC_REGISTERS(TYPE, N, n, "0", X0, X1, X2, X3, X4, X5, X6), n,  \
                                 FLEXC_FRAGMENT(a));                                               \
        }                                                                                          \
        template <int kB>                                                                          \
        static __device__ void add_four_registers(float (&d)[N / 2], const unsigned (*a)[4],       \
                                                  unsigned b) {                                    \
            FLEXC_FROM_REGISTERS(FLEXC_FOUR_REGISTERS(TYPE, N, n, X0, X1, X2, X3, X4, X5, X6, X7,  \
                                                      __VA_ARGS__),                                \
                                 n, FLEXC_FRAGMENT(a[0]), FLEXC_FRAGMENT(a[1]),                    \
                                 FLEXC_FRAGMENT(a[2]), FLEXC_FRAGMENT(a[3]));                      \
        }                                                                                          \
    };
#define FLEXC_FIXED_WGMMAS(...)                                                                    \
    FLEXC_FIXED_WGMMA(flexc_bf16, "bf16", __VA_ARGS__)                                           \
    FLEXC_FIXED_WGMMA(flexc_f16, "f16", __VA_ARGS__)

FLEXC_FIXED_WGMMAS(16, 0, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26)
FLEXC_FIXED_WGMMAS(32, 1, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25,
                   26, 27, 28, 29, 30, 31, 32, 33, 34)
FLEXC_FIXED_WGMMAS(48, 2, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33,
                   34, 35, 36, 37, 38, 39, 40, 41, 42)
FLEXC_FIXED_WGMMAS(64, 3, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41,
                   42, 43, 44, 45, 46, 47, 48, 49, 50)
FLEXC_FIXED_WGMMAS(80, 4, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49,
                   50, 51, 52, 53, 54, 55, 56, 57, 58)
FLEXC_FIXED_WGMMAS(96, 5, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57,
                   58, 59, 60, 61, 62, 63, 64, 65, 66)
FLEXC_FIXED_WGMMAS(112, 6, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65,
                   66, 67, 68, 69, 70, 71, 72, 73, 74)
FLEXC_FIXED_WGMMAS(128, 7, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73,
                   74, 75, 76, 77, 78, 79, 80, 81, 82)
// clang-format on

} // namespace sm90
