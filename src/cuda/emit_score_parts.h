// Scores of kernels that take the score mod decomposed, in the terms of passes/decompose.h.
#pragma once

#include <string>
#include <vector>

#include "cuda/expressions.h"
#include "passes/decompose.h"

namespace flexc::cuda {

// Converts from a float: values that are computed before a kernel are stored as floats, integers by
// their bits.
std::string from_float(const SymbolTable& symbols, ir::NodeId id, const std::string& text);
// Makes the body take values that were computed or copied ahead of it (values by key and by
// distance, shifted reads) from members of `at` instead of computing them.
void provide_parts(Body& body, const SymbolTable& symbols, const passes::ScoreParts& parts);
std::vector<ir::NodeId> logit_roots(const passes::ScoreParts& parts);

} // namespace flexc::cuda
