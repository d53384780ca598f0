// Policy of gradients of the terms of sums, each of which is a multiple of the same sum of dS over
// a diagonal.
#pragma once

namespace defaults {

struct TermGradients {
    static constexpr bool kExist = false;
    // Calls add(address, factor, is_of_head) for each term of each gradient: where the sum of dS
    // over the element's diagonal is added (null outside the buffer), by what it is multiplied
    // before, and whether the address is the same for all elements of a head.
    template <typename At, typename Add> static __device__ void visit(const At&, Add) {}
};

} // namespace defaults
