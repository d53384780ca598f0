// Logits that are products of queries and keys, and what all logits have: units, a mask, and the
// elements of one thread.
#pragma once

#include "common/place.cuh"
#include "sm90/hidden_scores.cuh"
#include "sm90/logit_units.cuh"
#include "sm90/score_elements.cuh"

namespace sm90 {

// One thread's part of the logits of a tile of queries.
class PlainLogits : public LogitForm, public LogitUnits {
  public:
    // tables: where they are in shared memory.
    __device__ PlainLogits(const AttentionArguments& attention, const mod::Arguments& arguments,
                           const HeadPlace& place, const SequenceLength& length, int warp_row,
                           int lane, unsigned tables = 0)
        : LogitUnits(attention.scale * kLog2E), attention_(attention),
          elements_(arguments, place, length, warp_row + lane / 4, lane, tables),
          keys_(length, arguments, place, elements_.rows(), warp_row, lane) {
        elements_.find_shifts(attention, warp_row + lane / 4);
    }

    // Which of the keys from first_key on a mask that is no band hides. Knows nothing of scores, so
    // that it may come while they are multiplied. mask_shows_all: it hides none of them.
    __device__ void look(int first_key, bool mask_shows_all) {
        hidden_.look(keys_, first_key, mask_shows_all, elements_.rows());
    }
    // What the keys from first_key on need that does not wait for their MMAs.
    __device__ void prepare(int) {}
    // What is added for the rows of the 2-D key index that the tile has, from this thread's first
    // query in shared memory; after prepare().
    __device__ void load_index_2d_rows(unsigned) {}
    // The biases of these keys. `rows`: the warp's first, in shared memory.
    __device__ void load_biases(unsigned) {}
    // What QK of these keys are added to, from biases in shared memory, likewise.
    __device__ void start(Scores&, unsigned, int) {}
    // Where what is tabulated for these keys is in shared memory; the row is the thread's first, in
    // the tile. apply() reads them.
    __device__ void find_tabulated(unsigned slices, int row) {
        elements_.find_tabulated(slices, row);
    }
    // What is copied of shifted reads of these keys: what it is, and where, likewise.
    __device__ void look_at_shifts(int first_key) { elements_.look_at_shifts(first_key); }
    __device__ void use_shifts(unsigned stage) { elements_.use_shifts(stage); }
    // Products become logits of the keys that look() was asked about; those that are hidden become
    // -inf.
    __device__ void apply(Scores& scores, int first_key) { hide(scores, first_key); }

    // What is added to a row's logits in one part of its columns.
    __device__ float offset(int, int) const { return 0; }
    // The running maximum of a row rises by so much, and is what logits are relative to.
    __device__ void lower(int, float, float) {}

    __device__ const Tables& tables() const { return elements_.tables(); }
    __device__ const Shifts& shifts() const { return elements_.shifts(); }

  protected:
    __device__ LogitUnits& units() { return *this; }
    __device__ const LogitUnits& units() const { return *this; }
    __device__ void hide(Scores& scores, int first_key) const {
        hidden_.apply(scores, keys_, first_key, elements_.rows());
        hide_next_keys(scores, elements_.first_column());
    }

    const AttentionArguments& attention_;
    ScoreElements elements_;

  private:
    VisibleKeys keys_;
    HiddenScores hidden_;
};

} // namespace sm90
