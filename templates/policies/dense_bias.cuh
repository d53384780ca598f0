// Policy of a dense bias, which has an element for each query and key, and whose last index is kv.
#pragma once

#include "common/element.cuh"

namespace defaults {

struct DenseBias {
    using Element = flexc_bf16;
    template <typename At> static __device__ const Element* address(const At&) { return nullptr; }
    // Returns the number of elements from one key to the next.
    template <typename Arguments> static __device__ long long step(const Arguments&) { return 0; }

    // Hopper's forward: whether the bias is a matrix of indices that all heads share.
    static constexpr bool kIsSharedByHeads = false;
    // Whether elements use the bias only where low <= kv - q <= high, numbers of a head.
    static constexpr bool kHasBand = false;
    template <typename At> static __device__ long long low(const At&) { return -(1ll << 62); }
    template <typename At> static __device__ long long high(const At&) { return 1ll << 62; }

    // Hopper's backward: number of tiles in shared memory; 0: the bias is read element by element,
    // or there is none.
    static constexpr int kStages = 0;
    // Whether it is ShiftedRead<0> instead, whose lines are those of queries, or of keys.
    static constexpr bool kIsShifted = false, kIsByKey = false;
    static constexpr bool kIsUsedByDerivatives = false; // derivatives read the copied bias
    static constexpr bool kIsSharedByBatches = false;   // the bias that is read or learned
    // Index of the first read whose gradient is added a tile at a time, which stands for all such
    // reads; -1: there is none.
    static constexpr int kGradient = -1;
    static constexpr bool kGradientIsDScore = true; // not multiplied by another derivative
    static constexpr bool kIsNarrow = true;         // buffers of gradients have 16 bits
    // Whether tiles of several batch entries, of several heads, or of a group's heads belong to the
    // same elements of the gradient. Used where tiles are stored instead of added.
    static constexpr bool kBatchesMeet = false, kHeadsMeet = false, kGroupMeets = false;
};

} // namespace defaults
