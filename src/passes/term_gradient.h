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

// The place whose elements a term's read has one address for: a head (or all of them), a query, a
// key, or an element.
Place place_of_term(const Mod& mod, ir::NodeId read);

// Words in which a warp can keep its sums of heads and keys of all terms: one for each term and
// read of a head, kWarpKeys for each of a key. 0 if the number of terms is not known before a call.
inline constexpr int kWarpKeys = 16;
int term_words(const Mod& mod);
// The same of one sum, by its counter, and its number of terms.
int term_words(const Mod& mod, ir::NodeId counter);
int count_terms(const Mod& mod, ir::NodeId counter);

} // namespace flexc::passes
