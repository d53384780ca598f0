// Reads of matrices that have a row for each query and a column for each key.
#pragma once

#include "passes/mod.h"

namespace flexc::passes {

// Whether a read is of floats or 16-bit numbers, never outside its buffer, with kv itself as the
// last index, and others that are q itself or use the head at most: what a tile of scores reads can
// be copied row by row.
bool is_matrix_read(const Mod& mod, ir::NodeId read);

// The matrix read that the score needs for each element, one with a gradient first; kNoNode for
// none.
ir::NodeId matrix_of_score(const Mod& mod);

} // namespace flexc::passes
