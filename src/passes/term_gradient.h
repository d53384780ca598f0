// Gradients of the terms of sums that kernels sum over whole tiles: for each term, a thread adds up
// its elements before memory sees them.
#pragma once

#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

// Fills ReadGradient::head_factor and element_factor for the reads of sums' terms that have no
// sum_factor. Uses the mod's facts, and finds them again if it adds nodes.
void find_term_gradients(Mod& mod);

// Returns those gradients.
std::vector<ReadGradient> terms_by_tile(const Mod& mod);
// Those that generic kernels sum so: of all reads but by an index that uses the score. Where no
// factor of the head was sought, element_factor is the partial.
std::vector<ReadGradient> terms_by_generic_tile(const Mod& mod);
// Whether generic kernels add it in a loop over the terms, element by element, instead.
bool is_term_by_element(const Mod& mod, const ReadGradient& gradient);

// The place whose elements a term's read has one address for: a head (or all of them), a query, a
// key, or an element.
Place place_of_term(const Mod& mod, ir::NodeId read);

// The numbers of terms' reads of a head and of a key, each counted once for a term. Both are 0 if
// the number of terms of some sum is not known before a call.
struct TermReads {
    int of_heads = 0, of_keys = 0;
    // Words in which a warp can keep the sums of all of them, with so many keys.
    int words(int keys) const { return of_heads + keys * of_keys; }
};
TermReads count_term_reads(const Mod& mod, const std::vector<ReadGradient>& terms);
// The number of a sum's terms, by its counter; 0 if it is not known, or large.
int count_terms(const Mod& mod, ir::NodeId counter);

} // namespace flexc::passes
