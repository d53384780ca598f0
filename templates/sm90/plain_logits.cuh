// Logits that are products of queries and keys, and what all logits have: units, a mask, and the
// elements of one thread.
#pragma once

#include "common/place.cuh"
#include "sm90/bias_tile.cuh"
#include "sm90/hidden_scores.cuh"
#include "sm90/logit_units.cuh"
#include "sm90/score_elements.cuh"

namespace sm90 {

// One thread's part of the logits of a tile of queries.
class PlainLogits : public LogitForm, public LogitUnits {
  public:
    // tables: address of the tables in shared memory.
    __device__ PlainLogits(const AttentionArguments& attention, const mod::Arguments& arguments,
                           const HeadPlace& place, const SequenceLength& length, int warp_row,
                           int lane, unsigned tables = 0)
        : LogitUnits(attention.scale * kLog2E), attention_(attention),
          elements_(arguments, place, length, warp_row + lane / 4, lane, tables),
          keys_(length, arguments, place, elements_.rows(), warp_row, lane) {
        elements_.find_shifts(attention, warp_row + lane / 4);
    }

    // Finds which of the keys from first_key on a mask that is no band hides. Does not need scores,
    // so that it may be called while they are multiplied. mask_shows_all: it hides none of them.
    __device__ void find_hidden(int first_key, bool mask_shows_all) {
        hidden_.find(keys_, first_key, mask_shows_all, elements_.rows());
    }
    // Computes what the keys from first_key on need that does not wait for their MMAs.
    __device__ void prepare(int) {}
    // Loads what is added for the rows of the 2-D key index that the tile has, from the address of
    // this thread's first query in shared memory. Called after prepare().
    __device__ void load_index_2d_rows(unsigned) {}
    // Loads the biases of these keys, from the address of the warp's first row in shared memory.
    __device__ void load_biases(unsigned) {}
    // Loads what QK of these keys is added to, from biases at the same address in shared memory.
    __device__ void start(Scores&, unsigned, int) {}
    // Sets where what is tabulated for these keys is in shared memory. row: the thread's first, in
    // the tile. apply() reads the values.
    __device__ void find_tabulated(unsigned slices, int row) {
        elements_.find_tabulated(slices, row);
    }
    // Find what is copied of shifted reads of these keys, and set where it is in shared memory.
    __device__ void find_reach_of_shifts(int first_key) {
        elements_.find_reach_of_shifts(first_key);
    }
    __device__ void use_shifts(unsigned stage) { elements_.use_shifts(stage); }
    // Turns products into logits of the keys that find_hidden() was called for; hidden ones become
    // -inf.
    __device__ void apply(Scores& scores, int first_key) { hide(scores, first_key); }

    // Returns what is added to a row's logits in one part of its columns.
    __device__ float offset(int, int) const { return 0; }
    // Called when the running maximum of a row, to which logits are relative, rises: with the row,
    // by how much, and the new maximum.
    __device__ void lower(int, float, float) {}
    // Returns the sum of a row's P, which is NaN where the row's factor is.
    __device__ float whole_sum(int, float sum) const { return sum; }

    __device__ const Tables& tables() const { return elements_.tables(); }
    __device__ const Shifts& shifts() const { return elements_.shifts(); }

  protected:
    __device__ LogitUnits& units() { return *this; }
    __device__ const LogitUnits& units() const { return *this; }
    template <typename Hidden = HiddenIsLeast>
    __device__ void hide(Scores& scores, int first_key, Hidden hidden = {}) const {
        hidden_.apply(scores, keys_, first_key, elements_.rows(), hidden);
        hide_next_keys(scores, elements_.first_column());
    }

    // Calls visit(r, at, 0) for the j-th column, with everything loaded that its elements read.
    template <typename Source, typename R, typename Visit>
    __device__ void visit_column(Source source, R reach, const BiasFragment& biases, int first_key,
                                 int j, Visit visit) {
        elements_.load_tabulated(j);
        elements_.load_shifts(reach, j);
        elements_.load_tables(source, j);
        elements_.visit_element(first_key, j, [&](int r, mod::At at) {
            if (kReadsBias) at.bias = biases.at(r, j);
            visit(r, at, 0.0f);
        });
    }

    const AttentionArguments& attention_;
    ScoreElements elements_;

  private:
    VisibleKeys keys_;
    HiddenScores hidden_;
};

} // namespace sm90
