// Whether a graph obeys its own rules: a bug in a pass shows here, not in generated code.
#pragma once

#include <span>
#include <string>

#include "ir/program.h"

namespace flexc::ir {

// Returns what is wrong with a node that the roots need; empty if nothing is.
std::string verify(const Program& program, std::span<const NodeId> roots);
// Also checks that score is real and mask is bool.
std::string verify(const Program& program);

} // namespace flexc::ir
