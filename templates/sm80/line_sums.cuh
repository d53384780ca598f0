// Sums of gradients along the rows and the columns of a warp's rectangle of a tile. A line's lanes
// add up what they have, and one of them adds that to memory. Thread 4 g + t holds columns 2t and
// 2t + 1 of row g.
#pragma once

#include "common/math.cuh"
#include "sm80/backward_mma.cuh"
#include "sm80/backward_tiles.cuh"

namespace sm80 {

// Lanes that share a line: whether this one is the first, and their sum, which all lanes of the
// warp call.
struct LanesOfRow {
    static __device__ bool is_first() { return lane_index() % 4 == 0; }
    static __device__ float sum(float x) { return quad_sum(x); }
};
struct LanesOfColumn {
    static __device__ bool is_first() { return lane_index() < 4; }
    static __device__ float sum(float x) {
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2)
            x += __shfl_xor_sync(0xffffffffu, x, distance);
        return x;
    }
};

// Of reads that depend on the query alone, or on the key alone, and of ends of clamps.
template <typename Gradients, typename Lanes> class LineSum {
    static constexpr int kCount = Gradients::kCount;
    float sums_[kCount ? kCount : 1] = {};

  public:
    __device__ void add(const mod::At& at, const mod::Joint& joint, float d_modified) {
        Gradients::sum(joint, d_modified, sums_);
        Gradients::sum_ends(at, joint, d_modified, sums_);
    }
    // Called by all lanes of the warp. exists: the line is inside of the tensors.
    __device__ void flush(const mod::At& at, bool exists) {
        if constexpr (kCount > 0) {
#pragma unroll
            for (float& sum : sums_)
                sum = Lanes::sum(sum);
            if (exists && Lanes::is_first()) Gradients::flush(at, sums_);
        }
    }
};

using RowSum = LineSum<mod::RowGradients, LanesOfRow>;
using ColumnSum = LineSum<mod::ColumnGradients, LanesOfColumn>;

} // namespace sm80
