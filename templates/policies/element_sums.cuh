// Policy of sums that a forward computes for some of a thread's elements at once, with the loops
// over terms and elements interchanged.
#pragma once

namespace defaults {

struct ElementSums {
    static constexpr int kElements = 0; // so many at once, of two rows; 0 if there are no such sums
    static constexpr int kCarried = 0;  // values of an element that enter terms
    static constexpr int kTotals = 0;   // sums of an element, which At::sums points to
    // A program that has such sums has these, too:
    //
    // enter(at, score, carried): stores what enters the terms of an element; staged_enter(),
    //     conditional_enter() and checked_enter() read tables as functions of these names do;
    // visit_totals(visit): as of TermSums.
};

} // namespace defaults
