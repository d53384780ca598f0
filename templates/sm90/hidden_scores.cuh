// Sets scores of hidden elements to -inf, or to another number of their row.
#pragma once

#include "common/math.cuh"
#include "common/select.h"
#include "sm90/fragment.cuh"
#include "sm90/visible_keys.cuh"
#include "sm90/warpgroup.cuh"

namespace sm90 {

static_assert(kFragmentColumns <= 32, "one bit each");

// What hidden elements are: hidden(r, score, visible, j) returns the score where the j-th bit of
// visible is set.
struct HiddenIsLeast {
    __device__ float operator()(int, float score, unsigned visible, int j) const {
        return if_visible(score, visible, j);
    }
};
struct HiddenIsOfRow {
    float of_row[2];
    __device__ float operator()(int r, float score, unsigned visible, int j) const {
        return if_visible(score, visible, j, of_row[r]);
    }
};

template <typename Hidden>
__device__ void hide_scores(Scores& scores, const unsigned (&visible)[2], Hidden hidden) {
#pragma unroll
    for (int j = 0; j < kFragmentColumns; ++j)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float& score = scores[accumulator(r, j)];
            score = hidden(r, score, visible[r], j);
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
    __device__ void find(const VisibleKeys&, int, bool, const mod::Row (&)[2]) {}
    template <typename Hidden>
    __device__ void apply(Scores& scores, const VisibleKeys& keys, int first_key,
                          const mod::Row (&rows)[2], Hidden hidden) const {
        if (keys.are_all(first_key, false)) return;
        unsigned visible[2];
        keys.find(visible, first_key, rows);
        hide_scores(scores, visible, hidden);
    }
};

// For other masks: finds hidden elements before the scores have been computed.
class HidesByMask : public HidesByBand {
  public:
    __device__ void find(const VisibleKeys& keys, int first_key, bool mask_shows_all,
                         const mod::Row (&rows)[2]) {
        hides_ = !keys.are_all(first_key, mask_shows_all);
        if (hides_) keys.find(visible_, first_key, rows);
    }
    template <typename Hidden>
    __device__ void apply(Scores& scores, const VisibleKeys&, int, const mod::Row (&)[2],
                          Hidden hidden) const {
        if (hides_) hide_scores(scores, visible_, hidden);
    }

  private:
    bool hides_;          // something of the tile
    unsigned visible_[2]; // bits of its visible elements
};

using HiddenScores = Select<Mask::kIsComparison, HidesByBand, HidesByMask>;

} // namespace sm90
