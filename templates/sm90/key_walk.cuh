// Visits tiles of keys in an order in which running maxima seldom rise: if what is added to scores
// follows from the positions alone, it starts where that is largest.
#pragma once

#include "common/place.cuh"
#include "sm90/distance.cuh"
#include "sm90/forward_layout.cuh"

namespace sm90 {

// Visits each tile of a range once. Starts where the first, the last or the key of distance 0 of
// those that the last row sees has the largest addend: any order is right, and functions of the
// distance are mostly largest there.
class KeyWalk {
  public:
    __device__ KeyWalk(const KernelArguments& attention, const mod::Arguments& arguments,
                       const Task& task)
        : begin_(task.begin), end_(task.end), tile_(task.end - 1), step_(-1) {
        if (begin_ == end_) return;
        const HeadPlace place(attention, arguments, task.b, task.h, task.h_kv, task.low, task.high);
        const SequenceLength length(attention, task.b);
        const int row = min(task.end_row, length.queries()) - 1;
        const Positions seen = place.keys_of(row, row);
        const int first = max(seen.first, begin_ * mod::kKeyTile);
        const int last = min(seen.last, min(end_ * mod::kKeyTile, length.keys()) - 1);
        if (first > last) return;
        const long long nearest = row + length.q_offset() - length.kv_offset();
        const int diagonal = static_cast<int>(
            max(min(nearest, static_cast<long long>(last)), static_cast<long long>(first)));
        const auto addend = [&](int key) {
            return addend_of(attention, arguments, place, row, key);
        };
        const float at_first = addend(first), at_last = addend(last), near = addend(diagonal);
        if (at_first > at_last && at_first > near) {
            tile_ = begin_;
            step_ = 1;
        } else if (near > at_last) {
            tile_ = diagonal / mod::kKeyTile;
        }
    }

    __device__ int tile() const { return tile_; }
    __device__ void advance() {
        tile_ += step_;
        if (tile_ < begin_) tile_ = end_ - 1;
    }

  private:
    // Returns the addend of a key, without what is the same for the whole row.
    static __device__ float addend_of(const KernelArguments& attention,
                                      const mod::Arguments& arguments, const HeadPlace& place,
                                      int row, int key) {
        float addend = 0;
        if constexpr (mod::kScoreForm.has_distance_addend) {
            const float unit = mod::kScoreForm.are_exponents ? kLn2 : 1.0f;
            addend = unit * distance_vector(attention, vector_head(attention, place.b, place.h),
                                            0)[kEntryFloats * distance_entry(attention, row - key)];
        }
        if constexpr (mod::kScoreForm.has_slope)
            addend += static_cast<float>(key) *
                      visit_element(attention, arguments, place, row, key,
                                    [](const mod::At& at) { return mod::slope(at); });
        return addend;
    }

    int begin_, end_, tile_, step_;
};

} // namespace sm90
