// The part of mod.cuh that computes what inner loops use of a launch, a head, a row or a column.
#pragma once

#include <string>

#include "cuda/expressions.h"

namespace flexc::cuda {

// The structs of what each place keeps: Launch, Head, Row and Column.
std::string emit_place_structs(const SymbolTable& symbols);
// Of how many instructions the function of a row or a column may be to be inlined, where a longer
// one is called; and any function that reads several values to read what its caller does not use.
struct MostInlined {
    int row, column;
    int with_unused_reads;
};
// The functions that compute them, at_launch() to at_column().
std::string emit_place_functions(const SymbolTable& symbols, MostInlined most);

} // namespace flexc::cuda
