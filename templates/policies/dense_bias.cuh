// A bias with an element for each query and key, whose last index is kv.
#pragma once

#include "common/element.cuh"

namespace defaults {

struct DenseBias {
    using Element = flexc_bf16;
    template <typename At> static __device__ const Element* address(const At&) { return nullptr; }
    // Elements from one key to the next.
    template <typename Arguments> static __device__ long long step(const Arguments&) { return 0; }

    // Hopper's forward: it is a matrix of indices, the same for all heads.
    static constexpr bool kIsSharedByHeads = false;

    // Hopper's backward. Tiles that are copied at a time; 0: it is read element by element, or not.
    static constexpr int kStages = 0;
    static constexpr bool kIsUsedByDerivatives = false; // where it is copied
    static constexpr bool kIsSharedByBatches = false;   // one that is read or learned is
    // The first read whose gradient is added a tile at a time, as that of all such reads; -1: none.
    static constexpr int kGradient = -1;
    static constexpr bool kGradientIsDScore = true; // and not what a derivative makes of it
    static constexpr bool kIsNarrow = true;         // and gradients have 16 bits
    // Whose tiles meet at an element of the gradient, where tiles are stored instead of added.
    static constexpr bool kBatchesMeet = false, kHeadsMeet = false, kGroupMeets = false;
};

} // namespace defaults
