// Lengths of the vectors that a kernel computes ahead of attention: one number for each key, or for
// each distance q - kv. Device and host agree on them here.
#pragma once

#include "common/host_device.h"

constexpr int kTabulatedStep = 128; // numbers that a block of threads computes
// Entries past the end that forward tiles may read: a tile may start at the last row and has up to
// this many rows. Backward tiles end at a multiple of kTabulatedStep.
constexpr int kForwardOverhang = 192;
constexpr int kOperandFloats = 4; // of a key's operand, as which products bring its addend
// What there is of a distance in a forward: two copies of a number; or, where products are added to
// it, the numbers with which four accumulators start.
constexpr int kDistanceCopies = 2, kStartFloats = 4;

FLEXC_SHARED constexpr long long tabulated_length(long long rows, int overhang) {
    return (rows + overhang + kTabulatedStep - 1) / kTabulatedStep * kTabulatedStep;
}
