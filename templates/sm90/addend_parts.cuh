// Addends that come with the products of QK: operands of one more step of its MMAs, in which a
// number is the sum of three bf16 numbers. They are 16 bytes for each row, without a swizzle.
#pragma once

#include "sm90/forward_layout.cuh"
#include "sm90/warpgroup.cuh"
#include "sm90/wgmma.cuh"

namespace sm90 {

// Three bf16 numbers that add up to a float, eight bits of it each, in the upper halves of words.
struct Parts {
    unsigned high, middle, low;

    __device__ explicit Parts(float x) {
        constexpr unsigned kUpper = 0xffff0000u;
        const unsigned bits = __float_as_uint(x);
        high = bits & kUpper;
        // A number that had 16 bits in memory leaves no rest; infinity must not leave NaN.
        const float rest = (bits & ~kUpper) == 0 ? 0 : x - __uint_as_float(high);
        middle = __float_as_uint(rest) & kUpper;
        low = __float_as_uint(rest - __uint_as_float(middle)) & kUpper;
    }
};

// Returns the low word of an operand without a swizzle, kept in a register: the compiler would
// compute it again for every product otherwise.
// half_bytes: from the first half of the columns to the second; 0 if they are the same memory.
__device__ inline unsigned held_operand(unsigned address, int half_bytes = 0) {
    return static_cast<unsigned>(uniform(static_cast<int>(Operand(address, half_bytes).low)));
}

// No such step.
struct NoAddendStep {
    static __device__ void store_unit(const AttentionArguments&, const Shared&) {}
    // Stores what queries of a tile multiply.
    // first_row: of the warpgroup.
    static __device__ void store_queries(const AttentionArguments&, const mod::Arguments&,
                                         const HeadPlace&, int, const Shared&,
                                         const ConsumerThread&) {}
    __device__ NoAddendStep(const Shared&, const ConsumerThread&) {}
    // Return the low words of the step's operands, which come with the keys of this stage.
    __device__ unsigned of_queries(int) const { return 0; }
    __device__ unsigned of_keys(int) const { return 0; }
};

} // namespace sm90
