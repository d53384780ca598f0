// Gradients of reads by differences of digits of q and kv, as rows and columns of an image have:
// elements of one distance q - kv add to the same places where the same digits of kv borrow, so
// that dS can be summed over parts of diagonals.
#pragma once

#include "analysis/index_form.h"
#include "passes/mod.h"

namespace flexc::passes {

// Fills Mod::digit_places and ReadGradient::is_of_grid: of all gradients of tables, or of none.
// From the mod's facts and find_table_gradients().
void find_grid_gradients(Mod& mod);

// Conditions under which elements add to grids' gradients, each about q alone or about kv alone, as
// class tokens have them: where one does not hold, all of these gradients are 0.
analysis::Assumptions grid_conditions(const Mod& mod);
// What a distance's sums of d loss / d score are multiplied with at an element for which the
// conditions hold; kNoNode where they are the gradient.
ir::NodeId distance_factor(const Mod& mod, const ReadGradient& gradient);
// Whether digits begin at multiples of eight positions alone, and all elements add.
bool is_grid_aligned(const Mod& mod);

} // namespace flexc::passes
