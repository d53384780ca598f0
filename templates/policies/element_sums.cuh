// Policy of sums that Hopper's kernels compute for some of a thread's elements at once, with the
// loops over terms and elements interchanged.
#pragma once

namespace defaults {

struct ElementSums {
    // So many at once, of two rows in a forward and two keys in a backward; 0: there are no such
    // sums.
    static constexpr int kElements = 0;
    static constexpr int kCarried = 0; // values of an element that enter terms
    static constexpr int kTotals = 0;  // sums of an element, which At::sums points to
    // A program that has such sums has these, too:
    //
    // enter(at, score, carried): stores what enters the terms of an element, also those of
    //     TermSums; a forward's staged_enter(), conditional_enter() and checked_enter() read tables
    //     as functions of these names do;
    // visit_totals(visit): calls visit(terms) for the sums of each counter, with a type that has
    //     kSums, kFirst: their number, and the index of the first one's total;
    //     Counter, first(at), end(at): the counter's type and range;
    //     parts(at, carried, counter): the term of each.
};

} // namespace defaults
