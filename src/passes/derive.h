// Symbolic derivatives, forward mode: one leaf at a time. Where a rule chooses zero, nothing that
// the zero would be multiplied by has a say. The rules are the `derivative` column of ops.def.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "ir/program.h"

namespace flexc::passes {

// d root / d leaf for each leaf (the score or a real read); kNoNode where it is 0 by structure:
// nothing flows through integers, comparisons, conditions or the indices of reads. Nothing at all
// beyond kMaxDerivativeNodes.
std::optional<std::vector<ir::NodeId>> derive(ir::Graph& graph, ir::NodeId root,
                                              std::span<const ir::NodeId> leaves);

} // namespace flexc::passes
