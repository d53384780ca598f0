// Sums that a thread's elements add up in loops over their terms (mod::ElementSums), for some of
// the thread's columns at once.
#pragma once

#include "common/select.h"
#include "sm90/score_elements.cuh"
#include "sm90/term_totals.cuh"

namespace sm90 {

struct NoColumnSums {
    template <typename Source, typename VisitColumn>
    __device__ void find(Source, const ScoreElements&, int, int, VisitColumn) {}
    __device__ const mod::At& given(const mod::At& at, int, int) const { return at; }
};

template <typename Policy> class ColumnSums {
  public:
    // Called for each column in order, before anything of it is loaded; finds the sums of some
    // columns where the j-th is the first of these. visit_column(j, visit): loads what a column
    // needs, and calls visit(r, at, score) for its rows.
    template <typename Source, typename VisitColumn>
    __device__ void find(Source source, const ScoreElements& elements, int first_key, int j,
                         VisitColumn visit_column) {
        if (j % kColumns != 0) return;
        Carried kept;
        visit_columns(j, [&](int i) {
            visit_column(j + i, [&](int r, const mod::At& at, float score) {
                float carried[Carried::kSlots];
                enter(source, at, score, carried);
                kept.keep(2 * i + r, carried);
            });
        });
        elements.visit_head([&](const mod::At& at) {
            totals_.compute(kept, at, [&](auto visit) {
                visit_columns(j, [&](int i) {
                    elements.visit_element(first_key, j + i, [&](int r, const mod::At& at_element) {
                        visit(2 * i + r, at_element);
                    });
                });
            });
        });
    }
    // Returns the element with its sums, of one of these columns.
    template <typename At> __device__ At given(At at, int r, int j) const {
        at.sums = totals_.of[2 * (j % kColumns) + r];
        return at;
    }

  private:
    static constexpr int kColumns = Policy::kElements / 2;
    using Carried = CarriedValues<Policy::kCarried, Policy::kElements>;

    // Calls visit(i) for the i-th column from the j-th on.
    template <typename Visit> static __device__ void visit_columns(int j, Visit visit) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i)
            if (j + i < kFragmentColumns) visit(i);
    }
    template <typename Source>
    static __device__ void enter(Source, const mod::At& at, float score, float* carried) {
        if constexpr (Source::kSource == TableSource::inside)
            Policy::staged_enter(at, score, carried);
        else if constexpr (Source::kSource == TableSource::conditional)
            Policy::conditional_enter(at, score, carried);
        else if constexpr (Source::kSource == TableSource::checked)
            Policy::checked_enter(at, score, carried);
        else
            Policy::enter(at, score, carried);
    }

    TermTotals<Policy, Policy::kElements> totals_;
};

using Sums =
    Select<(mod::ElementSums::kElements > 0), ColumnSums<mod::ElementSums>, NoColumnSums>;

} // namespace sm90
