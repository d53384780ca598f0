// Gradients that follow from sums over whole rows of the score matrix, without a look at its
// elements.
//
// What is added to all scores of a row moves its lse and leaves its weights alone: the gradients of
// a row's modified scores have d loss / d lse as their sum, where the row sees anything. And with
// dq = scale * dS K, the sum of their products with the scores is that of dq and q.
#pragma once

#include "passes/mod.h"

namespace flexc::passes {

// Fills ReadGradient::factor and addend, and Mod::is_line_of_row.
void find_row_gradients(Mod& mod);

// Whether products of q and dq give gradients: dq is then found without d score_mod / d score,
// which is the same for a whole row and multiplied into it afterwards.
bool has_products_of_queries(const Mod& mod);

} // namespace flexc::passes
