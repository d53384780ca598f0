// Sets scores of hidden elements to -inf.
#pragma once

#include "common/math.cuh"
#include "common/select.h"
#include "sm90/fragment.cuh"
#include "sm90/visible_keys.cuh"
#include "sm90/warpgroup.cuh"

namespace sm90 {

static_assert(kFragmentColumns <= 32, "one bit each");

__device__ inline void hide_scores(Scores& scores, const unsigned (&visible)[2]) {
#pragma unroll
    for (int j = 0; j < kFragmentColumns; ++j)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float& score = scores[accumulator(r, j)];
            score = if_visible(score, visible[r], j);
        }
}

// Hides keys of a tile that belong to the next one.
__device__ inline void hide_next_keys(Scores& scores, int first_column) {
#pragma unroll
    for (int j = 0; j < kFragmentColumns; ++j) {
        if (column_of(j) + 6 < mod::kKeyStep) continue; // +6: the last lane's
        const bool is_next = first_column + column_of(j) >= mod::kKeyStep;
#pragma unroll
        for (int r = 0; r < 2; ++r)
            if (is_next) scores[accumulator(r, j)] = negative_infinity();
    }
}

// For masks that are bands: finds hidden elements when the scores have been computed.
struct HidesByBand {
    // mask_shows_all: the mask hides none of the tile's keys. Does not need scores, so that it may
    // be called while they are multiplied.
    __device__ void look(const VisibleKeys&, int, bool, const mod::Row (&)[2]) {}
    __device__ void apply(Scores& scores, const VisibleKeys& keys, int first_key,
                          const mod::Row (&rows)[2]) const {
        if (keys.are_all(first_key, false)) return;
        unsigned visible[2];
        keys.find(visible, first_key, rows);
        hide_scores(scores, visible);
    }
};

// For other masks: finds hidden elements before the scores have been computed.
class HidesByMask : public HidesByBand {
  public:
    __device__ void look(const VisibleKeys& keys, int first_key, bool mask_shows_all,
                         const mod::Row (&rows)[2]) {
        hides_ = !keys.are_all(first_key, mask_shows_all);
        if (hides_) keys.find(visible_, first_key, rows);
    }
    __device__ void apply(Scores& scores, const VisibleKeys&, int, const mod::Row (&)[2]) const {
        if (hides_) hide_scores(scores, visible_);
    }

  private:
    bool hides_;          // something of the tile
    unsigned visible_[2]; // bits of its visible elements
};

using HiddenScores = Select<Mask::kIsComparison, HidesByBand, HidesByMask>;

} // namespace sm90
