// A warpgroup's share of a row's columns, where two warpgroups have the same keys: as many panels
// each, and 32 columns of the one that is left over in the middle.
#pragma once

#include "sm90/backward_layout.cuh"
#include "sm90/wgmma_fixed.cuh"

namespace sm90 {

template <int kPanelCount> struct Share {
    static constexpr int kWholePanels = kPanelCount / 2;
    static constexpr bool kHasHalf = kPanelCount % 2 != 0;
    static constexpr int kWhole = 32 * kWholePanels, kHalf = kHasHalf ? 16 : 0; // accumulators
    using Sums = float[kWhole + kHalf];

    int warpgroup;

    // See EveryColumn.
    __device__ int place(int eight) const {
        return eight < 8 * kWholePanels
                   ? 8 * (kPanelCount - kWholePanels) * warpgroup + eight
                   : 8 * kWholePanels + 4 * warpgroup + (eight - 8 * kWholePanels);
    }

    // sums (+)= A B over 64 of the summed index, in steps of 16 that are kStepOfA bytes apart in A;
    // B is transposed, and `b` is the word of its first column.
    template <int kA, int kStepOfA, bool kTransposedA, int kB, bool kAdds, int kStep = 0>
    __device__ void issue(Sums& sums, unsigned a, unsigned b) const {
        constexpr int kFromA = kA + kStep * kStepOfA, kFromB = kB + kStep * 16 * kRowBytes;
        constexpr bool kStarts = !kAdds && kStep == 0;
        if constexpr (kWhole > 0)
            multiply<0, kWhole, kFromA, kTransposedA, kFromB, kStarts>(
                sums, a, b + warpgroup * ((kPanelCount - kWholePanels) * kKeyPanel >> 4));
        if constexpr (kHasHalf)
            multiply<kWhole, kHalf, kFromA, kTransposedA, kFromB + kWholePanels * kKeyPanel,
                     kStarts>(sums, a, b + warpgroup * (kRowBytes / 2 >> 4));
        if constexpr (kStep < 3)
            issue<kA, kStepOfA, kTransposedA, kB, kAdds, kStep + 1>(sums, a, b);
    }

  private:
    template <int kFirst, int kCount, int kA, bool kTransposedA, int kB, bool kStarts>
    static __device__ void multiply(Sums& sums, unsigned a, unsigned b) {
        using P = FixedProduct<mod::Element, 2 * kCount>;
        auto& part = *reinterpret_cast<float(*)[kCount]>(&sums[kFirst]);
        if constexpr (kStarts)
            P::template start<kA, kB, true, kTransposedA>(part, a, b);
        else
            P::template add<kA, kB, true, kTransposedA>(part, a, b);
    }
};

} // namespace sm90
