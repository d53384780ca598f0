// Policy of gradients of tables that are read by differences of digits of positions, as a table of
// an image is read by differences of rows and columns. dS is summed over diagonals, separately for
// each way in which these differences borrow.
#pragma once

namespace defaults {

struct GridGradients {
    static constexpr int kPlaces = 0; // number of digits of q and kv above the lowest
    // Width and offsets of the digit at a place: that of (position + offset) / width.
    static constexpr __device__ int width(int) { return 1; }
    static constexpr __device__ int query_offset(int) { return 0; }
    static constexpr __device__ int key_offset(int) { return 0; }
    // Whether some queries or keys take no part in the sums.
    static constexpr bool kHasConditions = false;
    template <typename At> static __device__ bool takes_query(const At&) { return true; }
    template <typename At> static __device__ bool takes_key(const At&) { return true; }
};

} // namespace defaults
