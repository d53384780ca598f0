// Warp-wide matrix products: 16 x 8 += 16 x K * K x 8, where K is 32 bytes of elements, so that
// loads look alike for all element types. 16-bit elements take one instruction. Floats are split in
// a TF32 part and a TF32 remainder, whose three significant products keep f32 accuracy.
//
// Which thread holds what (lane = 4 g + t): accumulators 0, 1 are row g, columns 2t and 2t + 1;
// accumulators 2, 3 the same columns of row g + 8.
//
// Order of k in float operands: "natural" as memory has it, or "paired", what an accumulator gives
// when it becomes an operand: slot t holds k = 2t, slot t + 4 holds k = 2t + 1. A product is right
// when both of its operands have the same order. 16-bit elements know no difference.
#pragma once

#include "sm80/tile.cuh"

namespace sm80 {

template <typename E> struct OperandA { // 16 x K
    unsigned registers[4];
};
template <typename E> struct OperandB { // K x 8
    unsigned registers[2];
};
template <> struct OperandA<float> {
    unsigned big[4], small[4];
};
template <> struct OperandB<float> {
    unsigned big[2], small[2];
};

// Columns of k in one product.
template <typename E> constexpr int kStepK = 32 / static_cast<int>(sizeof(E));

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) & 31; }

// --- instructions ---------------------------------------------------------------------------

// Four 8 x 8 matrices of 16-bit elements (or 8 x 4 of floats); lane i names row i % 8 of matrix i
// / 8.
__device__ inline void load_matrices(unsigned (&r)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
__device__ inline void load_matrices_transposed(unsigned (&r)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

__device__ inline void multiply_tf32(float (&c)[4], const unsigned (&a)[4],
                                     const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c += a * b
__device__ inline void multiply(float (&c)[4], const OperandA<flexc_bf16>& a,
                                const OperandB<flexc_bf16>& b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.registers[0]), "r"(a.registers[1]), "r"(a.registers[2]), "r"(a.registers[3]),
          "r"(b.registers[0]), "r"(b.registers[1]));
}
__device__ inline void multiply(float (&c)[4], const OperandA<flexc_f16>& a,
                                const OperandB<flexc_f16>& b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.registers[0]), "r"(a.registers[1]), "r"(a.registers[2]), "r"(a.registers[3]),
          "r"(b.registers[0]), "r"(b.registers[1]));
}
// c = a * b
__device__ inline void multiply_first(float (&c)[4], const OperandA<flexc_bf16>& a,
                                      const OperandB<flexc_bf16>& b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %10, %10, %10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a.registers[0]), "r"(a.registers[1]), "r"(a.registers[2]), "r"(a.registers[3]),
          "r"(b.registers[0]), "r"(b.registers[1]), "f"(0.0f));
}
__device__ inline void multiply_first(float (&c)[4], const OperandA<flexc_f16>& a,
                                      const OperandB<flexc_f16>& b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %10, %10, %10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a.registers[0]), "r"(a.registers[1]), "r"(a.registers[2]), "r"(a.registers[3]),
          "r"(b.registers[0]), "r"(b.registers[1]), "f"(0.0f));
}
__device__ inline void multiply(float (&c)[4], const OperandA<float>& a, const OperandB<float>& b) {
    multiply_tf32(c, a.small, b.big);
    multiply_tf32(c, a.big, b.small);
    multiply_tf32(c, a.big, b.big);
}

// --- registers to operands ------------------------------------------------------------------

// Splits x into a TF32 number (11 significant bits) and a remainder, also TF32. If x is NaN, so is
// the remainder.
__device__ inline void split(float x, unsigned& big, unsigned& small) {
    big = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    small = __float_as_uint(x - __uint_as_float(big));
}

template <typename E> __device__ unsigned pack(float low, float high);
template <> __device__ inline unsigned pack<flexc_bf16>(float low, float high) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
template <> __device__ inline unsigned pack<flexc_f16>(float low, float high) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

template <typename E>
__device__ inline void operand_from(OperandA<E>& a, const unsigned (&raw)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
        a.registers[i] = raw[i];
}
__device__ inline void operand_from(OperandA<float>& a, const unsigned (&raw)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
        split(__uint_as_float(raw[i]), a.big[i], a.small[i]);
}
template <typename E>
__device__ inline void operand_from(OperandB<E>& b, unsigned low, unsigned high) {
    b.registers[0] = low;
    b.registers[1] = high;
}
__device__ inline void operand_from(OperandB<float>& b, unsigned low, unsigned high) {
    split(__uint_as_float(low), b.big[0], b.small[0]);
    split(__uint_as_float(high), b.big[1], b.small[1]);
}

// Turns columns [step * kStepK, ...) of a 16-row accumulator into the left operand, in paired
// order.
template <typename E, int kCount>
__device__ inline OperandA<E> operand_from_accumulators(const float (&c)[kCount][4], int step) {
    OperandA<E> a;
    if constexpr (sizeof(E) == 4) {
        const float(&tile)[4] = c[step];
        const unsigned raw[4] = {__float_as_uint(tile[0]), __float_as_uint(tile[2]),
                                 __float_as_uint(tile[1]), __float_as_uint(tile[3])};
        operand_from(a, raw);
    } else {
        const float(&left)[4] = c[2 * step];
        const float(&right)[4] = c[2 * step + 1];
        const unsigned raw[4] = {pack<E>(left[0], left[1]), pack<E>(left[2], left[3]),
                                 pack<E>(right[0], right[1]), pack<E>(right[2], right[3])};
        operand_from(a, raw);
    }
    return a;
}

// --- tiles to operands -----------------------------------------------------------------------

// Rows [row, row + 16) of the tile, columns [k, k + kStepK): A as stored, natural order.
template <typename E, int kRows, int kColumns>
__device__ inline OperandA<E> load_a(Tile<E, kRows, kColumns> tile, int row, int k) {
    const int lane = lane_index();
    const unsigned corner = tile.base + lane % 16 * tile.kPitch + lane / 16 * 16;
    unsigned raw[4];
    load_matrices(raw, corner + row * tile.kPitch + k * static_cast<int>(sizeof(E)));
    OperandA<E> a;
    operand_from(a, raw);
    return a;
}

// Two right operands, for result columns n..n+7 and n+8..n+15, from a tile whose rows are the
// result's columns (keys in Q K^T): natural order.
template <typename E, int kRows, int kColumns>
__device__ inline void load_b(OperandB<E> (&b)[2], Tile<E, kRows, kColumns> tile, int n, int k) {
    const int lane = lane_index();
    const unsigned corner =
        tile.base + (lane % 8 + lane / 16 * 8) * tile.kPitch + lane / 8 % 2 * 16;
    unsigned raw[4];
    load_matrices(raw, corner + n * tile.kPitch + k * static_cast<int>(sizeof(E)));
    operand_from(b[0], raw[0], raw[1]);
    operand_from(b[1], raw[2], raw[3]);
}

// The same from a tile whose rows are k (values in P V): paired order.
template <typename E, int kRows, int kColumns>
__device__ inline void load_b_transposed(OperandB<E> (&b)[2], Tile<E, kRows, kColumns> tile, int n,
                                         int k) {
    const int lane = lane_index();
    if constexpr (sizeof(E) == 4) {
        const unsigned corner = tile.base + lane % 4 * 2 * tile.kPitch + lane / 4 * 4;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const unsigned from = corner + k * tile.kPitch + (n + 8 * i) * 4;
            operand_from(b[i], __float_as_uint(load_shared_float(from)),
                         __float_as_uint(load_shared_float(from + tile.kPitch)));
        }
    } else {
        const unsigned corner = tile.base + lane % 16 * tile.kPitch + lane / 16 * 16;
        unsigned raw[4];
        load_matrices_transposed(raw, corner + k * tile.kPitch + n * 2);
        operand_from(b[0], raw[0], raw[1]);
        operand_from(b[1], raw[2], raw[3]);
    }
}

} // namespace sm80
