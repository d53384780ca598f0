// Gradients that follow from sums over whole rows of the score matrix, without a look at its
// elements.
//
// What is added to all scores of a row moves its lse and leaves its weights alone: the gradients of
// a row's modified scores have d loss / d lse as their sum, where the row sees anything. That is of
// all keys and the sink: it says nothing of some of them.
#pragma once

#include "passes/mod.h"

namespace flexc::passes {

// Fills ReadGradient::is_of_row and is_line_of_row, and Mod::is_line_of_row. rows_are_whole: no
// ReadGradient is of a row otherwise.
void find_row_gradients(Mod& mod, bool rows_are_whole);

} // namespace flexc::passes
