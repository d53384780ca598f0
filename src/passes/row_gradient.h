// Gradients that follow from sums over whole rows of the score matrix, without a look at its
// elements.
//
// What is added to all scores of a row moves its lse and leaves its weights alone: the gradients of
// a row's modified scores have d loss / d lse as their sum, where the row sees anything.
#pragma once

#include "passes/mod.h"

namespace flexc::passes {

// Fills ReadGradient::is_of_row and is_line_of_row, and Mod::is_line_of_row.
void find_row_gradients(Mod& mod);

} // namespace flexc::passes
