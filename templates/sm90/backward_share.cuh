// A warpgroup's share of a row's columns, where two warpgroups have the same keys: half of the
// panels, and with an odd number half of the middle one (32 columns).
#pragma once

#include "sm90/backward_layout.cuh"
#include "sm90/wgmma_fixed.cuh"

namespace sm90 {

template <int kPanelCount> struct Share {
    static constexpr int kColumns = 32 * kPanelCount;
    using Sums = float[kColumns / 2];

    int warpgroup;

    // Maps a thread's groups of eight columns to groups of the row, as EveryColumn does.
    __device__ int place(int eight) const {
        constexpr int kEights = kPanelCount / 2 * 8; // in whole panels
        return eight < kEights ? 8 * (kPanelCount - kPanelCount / 2) * warpgroup + eight
                               : kEights + 4 * warpgroup + (eight - kEights);
    }

    // Issues sums (+)= A B over 64 of the summed index, in steps of 16 that are kStepOfA bytes
    // apart in A; B is transposed. a, b: their operand words.
    template <int kA, int kStepOfA, bool kTransposedA, int kB, bool kAdds>
    __device__ void issue(Sums& sums, unsigned a, unsigned b) const {
        issue_steps<kA, kStepOfA, kTransposedA, kB, kAdds, 0>(sums, a, operand(b));
    }

  private:
    static constexpr unsigned kPanel = kKeyPanel >> 4, kHalfRow = kRowBytes / 2 >> 4;
    static_assert(kKeyPanel == kQueryPanel);

    // Returns the operand word of the share, from that of the whole row. One product has one stride
    // between panels, which cannot be negative: so the halved panel lies behind both whole ones in
    // shared memory.
    __device__ unsigned operand(unsigned word) const {
        if constexpr (kPanelCount == 1) return word + warpgroup * kHalfRow;
        if constexpr (kPanelCount != 3) return word + warpgroup * (kPanelCount / 2 * kPanel);
        const unsigned distance = warpgroup == 0 ? 2 * kPanel : kPanel + kHalfRow;
        return distance << 16 | ((word & 0xffff) + warpgroup * kPanel);
    }

    template <int kA, int kStepOfA, bool kTransposedA, int kB, bool kAdds, int kStep>
    static __device__ void issue_steps(Sums& sums, unsigned a, unsigned b) {
        using P = FixedWgmma<mod::Element, kColumns>;
        constexpr int kFromA = kA + kStep * kStepOfA, kFromB = kB + kStep * 16 * kRowBytes;
        if constexpr (kAdds || kStep > 0)
            P::template add<kFromA, kFromB, true, kTransposedA>(sums, a, b);
        else
            P::template start<kFromA, kFromB, true, kTransposedA>(sums, a, b);
        if constexpr (kStep < 3)
            issue_steps<kA, kStepOfA, kTransposedA, kB, kAdds, kStep + 1>(sums, a, b);
    }
};

} // namespace sm90
