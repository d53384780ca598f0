// Products of a warpgroup (PTX ISA, "wgmma"): D += A B with D, 64 rows of floats, in registers and
// B in shared memory.
//
// Accumulator i of a thread is at row 16 * warp + lane / 4 + 8 * (i / 2 % 2) and column
// 2 * (lane % 4) + 8 * (i / 4) + i % 2 of D.
#pragma once

#include "common/element.cuh"
#include "sm90/product_groups.cuh"

namespace sm90 {

constexpr int kPanelColumns = 64; // of 16 bits: 128 bytes, the width of the swizzle

// An operand in shared memory: panels of 64 columns, rows of 128 bytes, swizzled in groups of eight
// rows. Only the low word of its descriptor changes between operands: the address, and the distance
// between panels, which matters where the panels lie side by side in the product's columns.
struct Operand {
    unsigned low;

    __device__ Operand(unsigned address, int panel_bytes)
        : low(static_cast<unsigned>(panel_bytes >> 4) << 16 | (address & 0x3ffff) >> 4) {}
    __device__ Operand plus(int bytes) const {
        Operand moved = *this;
        moved.low += bytes >> 4;
        return moved;
    }
    // 1024 bytes between groups of rows; 128-byte swizzle.
    __device__ unsigned long long descriptor() const { return 0x4000004000000000ull | low; }
};

// multiply(): A and B in shared memory, both with rows of the summed index; A may start anew
// (accumulate = 0). multiply_registers(): A in registers, B with columns of the summed index.
template <typename E, int kColumns> struct Product;

// Accumulators by eights, as operands of an instruction and as their constraints.
// clang-format off
#define FLEXC_D0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FLEXC_D1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define FLEXC_D2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define FLEXC_D3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define FLEXC_D4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define FLEXC_D5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define FLEXC_D6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define FLEXC_D7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define FLEXC_D8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define FLEXC_D9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define FLEXC_D10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define FLEXC_D11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define FLEXC_D12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define FLEXC_D13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define FLEXC_D14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define FLEXC_D15 "%120, %121, %122, %123, %124, %125, %126, %127"

#define FLEXC_C(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
                   "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define FLEXC_LIST0 FLEXC_D0
#define FLEXC_KEEP0 FLEXC_C(0)
#define FLEXC_LIST1 FLEXC_LIST0 ", " FLEXC_D1
#define FLEXC_KEEP1 FLEXC_KEEP0, FLEXC_C(8)
#define FLEXC_LIST2 FLEXC_LIST1 ", " FLEXC_D2
#define FLEXC_KEEP2 FLEXC_KEEP1, FLEXC_C(16)
#define FLEXC_LIST3 FLEXC_LIST2 ", " FLEXC_D3
#define FLEXC_KEEP3 FLEXC_KEEP2, FLEXC_C(24)
#define FLEXC_LIST4 FLEXC_LIST3 ", " FLEXC_D4
#define FLEXC_KEEP4 FLEXC_KEEP3, FLEXC_C(32)
#define FLEXC_LIST5 FLEXC_LIST4 ", " FLEXC_D5
#define FLEXC_KEEP5 FLEXC_KEEP4, FLEXC_C(40)
#define FLEXC_LIST6 FLEXC_LIST5 ", " FLEXC_D6
#define FLEXC_KEEP6 FLEXC_KEEP5, FLEXC_C(48)
#define FLEXC_LIST7 FLEXC_LIST6 ", " FLEXC_D7
#define FLEXC_KEEP7 FLEXC_KEEP6, FLEXC_C(56)
#define FLEXC_LIST8 FLEXC_LIST7 ", " FLEXC_D8
#define FLEXC_KEEP8 FLEXC_KEEP7, FLEXC_C(64)
#define FLEXC_LIST9 FLEXC_LIST8 ", " FLEXC_D9
#define FLEXC_KEEP9 FLEXC_KEEP8, FLEXC_C(72)
#define FLEXC_LIST10 FLEXC_LIST9 ", " FLEXC_D10
#define FLEXC_KEEP10 FLEXC_KEEP9, FLEXC_C(80)
#define FLEXC_LIST11 FLEXC_LIST10 ", " FLEXC_D11
#define FLEXC_KEEP11 FLEXC_KEEP10, FLEXC_C(88)
#define FLEXC_LIST12 FLEXC_LIST11 ", " FLEXC_D12
#define FLEXC_KEEP12 FLEXC_KEEP11, FLEXC_C(96)
#define FLEXC_LIST13 FLEXC_LIST12 ", " FLEXC_D13
#define FLEXC_KEEP13 FLEXC_KEEP12, FLEXC_C(104)
#define FLEXC_LIST14 FLEXC_LIST13 ", " FLEXC_D14
#define FLEXC_KEEP14 FLEXC_KEEP13, FLEXC_C(112)
#define FLEXC_LIST15 FLEXC_LIST14 ", " FLEXC_D15
#define FLEXC_KEEP15 FLEXC_KEEP14, FLEXC_C(120)

// N columns in n + 1 eights of accumulators; X0 ... X4 number the operands after these.
#define FLEXC_PRODUCT(E, TYPE, N, n, X0, X1, X2, X3, X4)                                           \
    template <> struct Product<E, N> {                                                             \
        static __device__ void multiply(float (&d)[N / 2], Operand a, Operand b, int accumulate) { \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #X2 ", 0;\n"                         \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE           \
                         " {" FLEXC_LIST##n "}, %" #X0 ", %" #X1 ", p, 1, 1, 0, 0;\n}"             \
                         : FLEXC_KEEP##n                                                           \
                         : "l"(a.descriptor()), "l"(b.descriptor()), "r"(accumulate));             \
        }                                                                                          \
        static __device__ void multiply_registers(float (&d)[N / 2], const unsigned (&a)[4],       \
                                                  Operand b) {                                     \
            asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"                                \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE           \
                         " {" FLEXC_LIST##n "}, {%" #X0 ", %" #X1 ", %" #X2 ", %" #X3 "}, %" #X4   \
                         ", p, 1, 1, 1;\n}"                                                        \
                         : FLEXC_KEEP##n                                                           \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor()));       \
        }                                                                                          \
    };
#define FLEXC_PRODUCTS(...)                                                                        \
    FLEXC_PRODUCT(flexc_bf16, "bf16", __VA_ARGS__)                                                 \
    FLEXC_PRODUCT(flexc_f16, "f16", __VA_ARGS__)

FLEXC_PRODUCTS(16, 0, 8, 9, 10, 11, 12)
FLEXC_PRODUCTS(32, 1, 16, 17, 18, 19, 20)
FLEXC_PRODUCTS(48, 2, 24, 25, 26, 27, 28)
FLEXC_PRODUCTS(64, 3, 32, 33, 34, 35, 36)
FLEXC_PRODUCTS(80, 4, 40, 41, 42, 43, 44)
FLEXC_PRODUCTS(96, 5, 48, 49, 50, 51, 52)
FLEXC_PRODUCTS(112, 6, 56, 57, 58, 59, 60)
FLEXC_PRODUCTS(128, 7, 64, 65, 66, 67, 68)
FLEXC_PRODUCTS(144, 8, 72, 73, 74, 75, 76)
FLEXC_PRODUCTS(160, 9, 80, 81, 82, 83, 84)
FLEXC_PRODUCTS(176, 10, 88, 89, 90, 91, 92)
FLEXC_PRODUCTS(192, 11, 96, 97, 98, 99, 100)
FLEXC_PRODUCTS(208, 12, 104, 105, 106, 107, 108)
FLEXC_PRODUCTS(224, 13, 112, 113, 114, 115, 116)
FLEXC_PRODUCTS(240, 14, 120, 121, 122, 123, 124)
FLEXC_PRODUCTS(256, 15, 128, 129, 130, 131, 132)
// clang-format on

} // namespace sm90
