// Whether a graph obeys its own rules: a bug in a pass shows here, not in generated code.
#pragma once

#include <span>
#include <string>

#include "ir/program.h"

namespace flexc::ir {

// What is wrong with a node that the roots need; empty when nothing is.
std::string verify(const Program& program, std::span<const NodeId> roots);
// Also that score is real and mask is bool.
std::string verify(const Program& program);

} // namespace flexc::ir
