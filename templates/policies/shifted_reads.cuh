// Policy of reads at addresses that are affine in q and kv, which Hopper's forward, and of which
// Hopper's backward one, copies to shared memory.
#pragma once

namespace defaults {

struct ShiftedReads {
    static constexpr int kCount = 0;
    static constexpr bool kAreSum = false; // the addend is a sum of constant multiples of them
};

// Specialised by mod.cuh for each of the kCount reads.
template <int kRead> struct ShiftedRead;

} // namespace defaults
