// What operators cost on a GPU, for choices between computing a value again and keeping it.
#pragma once

#include "ir/graph.h"

namespace flexc::passes {

// About how many instructions an operator takes. is_fast: a few roundings of error are allowed.
int instructions_of(ir::Op op, bool is_fast, bool is_wide);

} // namespace flexc::passes
