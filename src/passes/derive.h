// Symbolic derivatives, forward mode: one leaf at a time, so that a branch that is not taken never
// multiplies anything. The rules are the `derivative` column of ops.def.
#pragma once

#include <span>
#include <vector>

#include "flexc/result.h"
#include "ir/program.h"

namespace flexc::passes {

// All of a program's derivatives together may add this many nodes.
inline constexpr ir::NodeId kMaxDerivativeNodes = 32768;

// d root / d leaf for each leaf (the score or a real read); kNoNode where it is 0 by structure:
// nothing flows through integers, comparisons, conditions or the indices of reads.
Result<std::vector<ir::NodeId>> derive(ir::Graph& graph, ir::NodeId root,
                                       std::span<const ir::NodeId> leaves);

} // namespace flexc::passes
