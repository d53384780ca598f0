// Symbolic differentiation in forward mode, one leaf at a time. Where a rule chooses zero, the
// factors of that zero have no effect, even if infinite. The rules are the `derivative` column of
// ops.def.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "ir/program.h"

namespace flexc::passes {

// Returns d root / d leaf for each leaf (the score or a real read); kNoNode if it is structurally
// 0: nothing flows through integers, comparisons, conditions or indices of reads. Returns nothing
// if more than kMaxDerivativeNodes would be needed.
std::optional<std::vector<ir::NodeId>> derive(ir::Graph& graph, ir::NodeId root,
                                              std::span<const ir::NodeId> leaves);

} // namespace flexc::passes
