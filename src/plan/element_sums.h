// What choosing a kernel depends on of sums that elements add up in loops.
#pragma once

#include <vector>

#include "passes/mod.h"

namespace flexc::plan {

// Sums that each element adds up in a loop over its terms: passes::element_sums(). None if one term
// of each, and what enters it, are more than kMostWrittenOut, too long to be repeated for elements.
struct ElementSums {
    int count = 0;
    int carried = 0; // values of an element that enter terms
    // Reads in terms, by what has an address of its own in a term.
    int reads_of_queries = 0, reads_of_keys = 0, reads_of_elements = 0;
};
ElementSums element_sums(const passes::Mod& mod, const std::vector<ir::NodeId>& sums);

} // namespace flexc::plan
