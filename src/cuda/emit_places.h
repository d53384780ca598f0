// The part of mod.cuh that computes what inner loops use of a launch, a head, a row or a column.
#pragma once

#include <string>

#include "cuda/expressions.h"

namespace flexc::cuda {

// The structs of what each place keeps: Launch, Head, Row and Column.
std::string emit_place_structs(const SymbolTable& symbols);
// The functions that compute them, at_launch() to at_column(). calls_long: those of rows and
// columns that are too long to be inlined are called.
std::string emit_place_functions(const SymbolTable& symbols, bool calls_long);

} // namespace flexc::cuda
