// Policy of gradients of shifted reads, which Hopper's backward sums along lines of a tile of dS.
#pragma once

namespace defaults {

struct ShiftedGradients {
    static constexpr int kCount = 0;
};

// Specialised by mod.cuh for each of the kCount gradients.
template <int kGradient> struct ShiftedGradient;

} // namespace defaults
