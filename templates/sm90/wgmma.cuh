// Products of a warpgroup (PTX ISA, "wgmma"): D += A B with D, 64 rows of floats, in registers and
// B in shared memory. Their instructions are in mod.cuh.
//
// Accumulator i of a thread is at row 16 * warp + lane / 4 + 8 * (i / 2 % 2) and column
// 2 * (lane % 4) + 8 * (i / 4) + i % 2 of D.
#pragma once

#include "sm90/wgmma_groups.cuh"

namespace sm90 {

constexpr int kPanelColumns = 64; // of 16 bits: 128 bytes, the width of the swizzle

// An operand in shared memory: panels of 64 columns, rows of 128 bytes, swizzled in groups of eight
// rows, with 1024 bytes between groups. Only the low word of its descriptor changes between
// operands: the address, and the distance between panels, which matters where the panels lie side
// by side in the product's columns.
struct Operand {
    unsigned low;

    __device__ Operand(unsigned address, int panel_bytes)
        : low(static_cast<unsigned>(panel_bytes >> 4) << 16 | (address & 0x3ffff) >> 4) {}
};

} // namespace sm90
