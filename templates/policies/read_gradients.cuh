// How Hopper's backward sums the gradient of each captured read, and where the sum goes.
#pragma once

namespace defaults {

enum class Sum {
    head,
    query,
    key,
    distance,
    quotient,
    remainder,
    dense_bias,
    table,
    shifted,
    row,
    element
};

struct ReadGradients {
    static constexpr bool kComeFromElements = false; // some do, not from tiles of dS
    static constexpr int kQuerySums = 0;             // by query, put together by the block's warps
    static constexpr bool kSumsDistances = false;
    static constexpr __device__ Sum sum_of(int) { return Sum::element; }
    // Its partial is, whatever the element.
    static constexpr __device__ bool is_finite(int) { return false; }
    // Null outside the buffer. An exact::Sum* in deterministic mode.
    template <typename At> static __device__ float* address(const At&, int) { return nullptr; }
};

} // namespace defaults
