// What values cost on a GPU, for choices between computing them again and keeping them.
#pragma once

#include "passes/mod.h"

namespace flexc::passes {

// About how many instructions an operator takes. is_fast: a few roundings of error are allowed.
int instructions_of(ir::Op op, bool is_fast, bool is_wide);

// Whether each element computes more for a value than so many instructions, or reads a captured
// buffer.
bool costs_more(const Mod& mod, ir::NodeId id, int instructions);

} // namespace flexc::passes
