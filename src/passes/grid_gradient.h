// Gradients of reads by differences of digits of q and kv, as rows and columns of an image have:
// elements of one distance q - kv add to the same places where the same digits of kv borrow, so
// that dS can be summed over parts of diagonals.
#pragma once

#include "passes/mod.h"

namespace flexc::passes {

// Fills Mod::borrow_places and ReadGradient::is_of_grid: of all gradients of tables, or of none.
// From the mod's facts and find_table_gradients().
void find_grid_gradients(Mod& mod);

} // namespace flexc::passes
