// Policy of gradients to which each element of the generic backward adds in memory, if all have the
// same partial derivative. A thread adds them after all elements of its tile: what an element reads
// cannot be loaded before an earlier element's addition, which may be to the same memory.
#pragma once

namespace defaults {

struct AddedGradients {
    static constexpr int kPartial = -1; // the derivative's, of Joint::partial; -1: there are none
    // Adds this to the gradients of what the element reads.
    template <typename At> static __device__ void add(const At&, float) {}
};

} // namespace defaults
