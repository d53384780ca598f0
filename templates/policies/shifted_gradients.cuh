// Gradients of shifted reads, which Hopper's backward sums along lines of a tile of dS.
#pragma once

namespace defaults {

struct ShiftedGradients {
    static constexpr int kCount = 0;
};

// Each of them.
template <int kGradient> struct ShiftedGradient;

} // namespace defaults
