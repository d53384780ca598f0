// Gradients that follow from sums over whole rows of the score matrix, without visiting elements.
//
// Adding a number to all scores of a row shifts its lse and leaves its weights unchanged. So the
// gradients of a row's modified scores sum to d loss / d lse, if the row sees anything. That holds
// for all keys and the sink together, not for some of them.
#pragma once

#include "passes/mod.h"

namespace flexc::passes {

// Fills ReadGradient::is_of_row and is_line_of_row, and Mod::is_line_of_row. rows_are_whole: calls
// have all keys of a row; otherwise no gradient is of a row.
void find_row_gradients(Mod& mod, bool rows_are_whole);

} // namespace flexc::passes
