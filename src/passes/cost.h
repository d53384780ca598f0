// Estimated costs of values on a GPU, for choosing between computing them again and keeping them.
#pragma once

#include "passes/mod.h"
#include "passes/precision.h"

namespace flexc::passes {

// Estimated number of instructions of an operator.
int instructions_of(ir::Op op, Precision precision, bool is_wide);

// How many of them run on the special function unit.
int special_functions_of(ir::Op op, Precision precision);

// Whether each element needs more than so many instructions for a value, or reads a captured
// buffer.
bool costs_more(const Mod& mod, ir::NodeId id, int instructions);

} // namespace flexc::passes
