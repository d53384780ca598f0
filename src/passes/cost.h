// What values cost on a GPU, for choices between computing them again and keeping them.
#pragma once

#include "passes/mod.h"
#include "passes/precision.h"

namespace flexc::passes {

// About how many instructions an operator takes.
int instructions_of(ir::Op op, Precision precision, bool is_wide);

// How many instructions of the special function unit are among them.
int special_functions_of(ir::Op op, Precision precision);

// Whether each element computes more for a value than so many instructions, or reads a captured
// buffer.
bool costs_more(const Mod& mod, ir::NodeId id, int instructions);

} // namespace flexc::passes
