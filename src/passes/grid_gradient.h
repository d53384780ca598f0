// Gradients of reads by differences of digits of q and kv (such as rows and columns of an image).
// Elements with the same distance q - kv whose digits borrow alike add to the same address, so that
// dS can be summed over parts of diagonals.
#pragma once

#include "analysis/index_form.h"
#include "passes/mod.h"

namespace flexc::passes {

// Fills Mod::digit_places and ReadGradient::is_of_grid, for all gradients of tables or for none.
// Needs the mod's facts and find_table_gradients().
void find_grid_gradients(Mod& mod);

// Conditions under which elements add to gradients of grids, each on q alone or on kv alone, as
// programs with class tokens have. Where one does not hold, all of these gradients are 0.
analysis::Assumptions grid_conditions(const Mod& mod);
// The factor by which sums of d loss / d score of a distance are multiplied, at an element for
// which the conditions hold; kNoNode if the sums are the gradient.
ir::NodeId distance_factor(const Mod& mod, const ReadGradient& gradient);
// Whether digits begin only at multiples of eight positions, and all elements add.
bool is_grid_aligned(const Mod& mod);

} // namespace flexc::passes
