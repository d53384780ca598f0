// Operands of matrix products from tiles of eight bits: elements are widened on their way from
// shared memory to registers.
//
// Order of k in Q K^T: "in fours", as bytes lie in a word: slots 2t, 2t + 1, 2t + 8 and 2t + 9 hold
// k = 4t ... 4t + 3.
#pragma once

#include "common/eight_bits.cuh"
#include "sm80/mma.cuh"

namespace sm80 {

// Two matrices of 8 x 16 bytes; lane i < 16 names row i % 8 of matrix i / 8.
__device__ inline void load_byte_matrices(unsigned (&r)[2], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address));
}
// Transposed in units of two bytes: a thread has columns 2g and 2g + 1 of rows 2t and 2t + 1.
__device__ inline void load_byte_matrices_transposed(unsigned (&r)[2], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address));
}

// Like load_b in mma.cuh, but widens 8-bit elements, in the order "in fours". E is f16.
template <typename E, typename N, int kRows, int kColumns>
__device__ inline void load_b(OperandB<E> (&b)[2], Tile<N, kRows, kColumns> tile, int n, int k) {
    unsigned raw[2];
    load_byte_matrices(raw, tile.at(n + lane_index() % 16, k));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const F16Pairs pairs = widen<N>(raw[i]);
        operand_from(b[i], pairs.first, pairs.second);
    }
}

// b[i] has every other column, n + 2g + i.
template <typename E, typename N, int kRows, int kColumns>
__device__ inline void load_b_transposed(OperandB<E> (&b)[2], Tile<N, kRows, kColumns> tile, int n,
                                         int k) {
    unsigned raw[2];
    load_byte_matrices_transposed(raw, tile.at(k + lane_index() % 16, n));
    F16Pairs pairs[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
        pairs[i] = widen<N>(__byte_perm(raw[i], 0, 0x3120)); // column by column
    operand_from(b[0], pairs[0].first, pairs[1].first);
    operand_from(b[1], pairs[0].second, pairs[1].second);
}

// A left operand whose k is in the order that load_b gives a right one from `beside`.
template <typename E, int kRows, int kOtherRows, int kColumns>
__device__ inline OperandA<E> load_a_beside(Tile<E, kOtherRows, kColumns>,
                                            Tile<E, kRows, kColumns> tile, int row, int k) {
    return load_a(tile, row, k);
}
template <typename E, typename N, int kRows, int kOtherRows, int kColumns>
__device__ inline OperandA<E> load_a_beside(Tile<N, kOtherRows, kColumns>,
                                            Tile<E, kRows, kColumns> tile, int row, int k) {
    const int lane = lane_index();
    const unsigned from = tile.at(row + lane / 4, k + lane % 4 * 4);
    OperandA<E> a;
    load_shared(a.registers[0], a.registers[2], from);
    load_shared(a.registers[1], a.registers[3], from + 8 * tile.kPitch);
    return a;
}

} // namespace sm80
