// Sums that a thread's elements add up in loops over their terms (mod::ElementSums), for those of
// some pairs of neighbouring queries at once.
#pragma once

#include "common/select.h"
#include "sm90/term_totals.cuh"

namespace sm90 {

struct NoPairSums {
    __device__ const mod::At& given(const mod::At& at, int, int) const { return at; }
};

template <typename Policy> class PairSums {
  public:
    // Called for each pair in order, before anything of it is loaded; finds the sums of some pairs
    // where this is the first of these. at: of the head. visit_loaded(pair, visit): loads what the
    // pair needs, and calls visit(key, j, at, score) for its elements, of the thread's j-th query;
    // visit_pair(pair, visit): calls visit(key, j, at) for what is not loaded.
    template <typename VisitLoaded, typename VisitPair>
    __device__ void find(const mod::At& at, int pair, VisitLoaded visit_loaded,
                         VisitPair visit_pair) {
        if (pair % kPairs != 0) return;
        visit_pairs(pair, [&](int one) {
            visit_loaded(one, [&](int key, int j, const mod::At& at_element, float score) {
                float values[Carried::kSlots];
                Policy::enter(at_element, score, values);
                kept_.keep(place(key, j), values);
            });
        });
        totals_.compute(kept_, at, [&](auto visit) {
            visit_pairs(pair, [&](int one) {
                visit_pair(one, [&](int key, int j, const mod::At& at_element) {
                    visit(place(key, j), at_element);
                });
            });
        });
    }
    // Of an element of these pairs: itself with its sums, and what enters their terms.
    __device__ mod::At given(mod::At at, int key, int j) const {
        at.sums = totals_.of[place(key, j)];
        return at;
    }
    template <int kLength> __device__ void load(int key, int j, float (&values)[kLength]) const {
        kept_.load(place(key, j), values);
    }

  private:
    static constexpr int kPairs = Policy::kElements / 4;
    using Carried = CarriedValues<Policy::kCarried, Policy::kElements>;

    template <typename Visit> static __device__ void visit_pairs(int first, Visit visit) {
#pragma unroll
        for (int i = 0; i < kPairs; ++i)
            visit(first + i);
    }
    static __device__ int place(int key, int j) { return 2 * (j % (2 * kPairs)) + key; }

    Carried kept_;
    TermTotals<Policy, Policy::kElements> totals_;
};

using SumsAtOnce =
    Select<(mod::ElementSums::kElements > 0), PairSums<mod::ElementSums>, NoPairSums>;

} // namespace sm90
