// Budgets of the passes, so that no program takes long or much memory here.
#pragma once

#include "ir/graph.h"

namespace flexc::passes {

// All of a program's derivatives together may add this many nodes.
inline constexpr ir::NodeId kMaxDerivativeNodes = 32768;
// Limit on the nodes that the results need after each pass.
inline constexpr std::size_t kMaxNodes = 40960;

} // namespace flexc::passes
