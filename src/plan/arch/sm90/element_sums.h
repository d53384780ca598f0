// How many of a thread's elements have the sums that they add up in loops over terms computed at
// once.
#pragma once

#include "plan/kernel_request.h"

namespace flexc::plan::sm90 {

// No kernel computes sums for more at once.
inline constexpr int kMostSumElements = 16;

// Bytes that may spill beside such sums where other forms follow: loops of each element take longer
// than what so many do, most of them outside of the loop over terms.
inline constexpr int kSpillsOfSums = 256;

// Returns as many as these registers of a thread hold; 0 if there are no such sums. Elements are
// those of two queries.
int sum_elements_of_rows(const ElementSums& sums, int registers);
// The same of two keys.
int sum_elements_of_keys(ElementSums sums, int registers);

} // namespace flexc::plan::sm90
