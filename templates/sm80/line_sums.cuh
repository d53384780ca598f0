// Sums of gradients along the rows and the columns of a warp's rectangle of a tile: of reads that
// depend on the query alone, or on the key alone. A line's lanes add up what they have, and one of
// them adds that to memory.
#pragma once

#include "sm80/backward_mma.cuh"
#include "sm80/backward_tiles.cuh"

namespace sm80 {

// kFirst, kLast: lanes whose numbers differ in the bits between these share the line.
template <typename Gradients, int kFirst, int kLast> class LineSum {
    static constexpr int kCount = Gradients::kCount;
    float sums_[kCount ? kCount : 1] = {};

  public:
    __device__ void add(const mod::Joint& joint, float d_modified) {
        Gradients::sum(joint, d_modified, sums_);
    }
    // Called by all lanes of the warp. exists: the line is inside of the tensors.
    __device__ void flush(const mod::At& at, bool exists) {
        if constexpr (kCount > 0) {
#pragma unroll
            for (float& sum : sums_)
#pragma unroll
                for (int lane = kFirst; lane <= kLast; lane *= 2)
                    sum += __shfl_xor_sync(0xffffffffu, sum, lane);
            if (exists && (lane_index() & (2 * kLast - kFirst)) == 0) Gradients::flush(at, sums_);
        }
    }
};

// Thread 4 g + t holds columns 2t and 2t + 1 of row g.
using RowSum = LineSum<mod::RowGradients, 1, 2>;
using ColumnSum = LineSum<mod::ColumnGradients, 4, 16>;

} // namespace sm80
