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
    bias_beside,
    table,
    shifted,
    terms,
    row,
    element
};

struct ReadGradients {
    // The kernel computes these alone; another one computes dq, dk and dv.
    static constexpr bool kAreAlone = false;
    static constexpr bool kComeFromElements = false; // some are not summed from tiles of dS
    static constexpr int kQuerySums = 0;             // sums by query, combined over a block's warps
    static constexpr bool kSumsDistances = false;
    // The read whose gradient of each element is stored in tiles beside dS, for the warps that sum
    // tables or diagonals; -1 if they sum dS.
    static constexpr int kWeighted = -1;
    // Whether a warp may stage what the program computes for each query.
    static constexpr bool kStageRows = true;
    static constexpr __device__ Sum sum_of(int) { return Sum::element; }
    // Whether the partial derivative of a read is finite for every element.
    static constexpr __device__ bool is_finite(int) { return false; }
    // Returns the address of the gradient of what an element reads; null outside the buffer. In
    // deterministic mode it is that of an exact::Sum.
    template <typename At> static __device__ float* address(const At&, int) { return nullptr; }
};

} // namespace defaults
