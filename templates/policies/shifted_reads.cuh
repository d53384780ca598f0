// Reads at addresses that are affine in q and kv, which Hopper's forward copies to shared memory.
#pragma once

namespace defaults {

struct ShiftedReads {
    static constexpr int kCount = 0;
    static constexpr bool kAreSum = false; // what is added is a sum of constant multiples of them
};

// Each of them.
template <int kRead> struct ShiftedRead;

} // namespace defaults
