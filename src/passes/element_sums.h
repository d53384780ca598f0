// Sums that elements add up in loops over their terms, and what enters these terms.
#pragma once

#include <span>
#include <vector>

#include "passes/decompose.h"

namespace flexc::passes {

// Returns the real sums that each element computes for the roots, of one counter after another;
// none of them enters the terms of another alone. known: values that elements do not compute.
std::vector<ir::NodeId> element_sums(const Mod& mod, const std::vector<ir::NodeId>& roots,
                                     std::span<const ir::NodeId> known);

// The same of what a forward's elements compute beside the other parts of the score.
std::vector<ir::NodeId> element_sums(const Mod& mod, const ScoreParts& parts);

// Returns the nodes that terms use and that do not change with their counter, each once.
std::vector<ir::NodeId> entering(const Mod& mod, const std::vector<ir::NodeId>& terms);

// Returns the real values of an element that enter terms, and the score if it does. uses_score: the
// score is asked for anyway.
std::vector<ir::NodeId> carried_values(const Mod& mod, const std::vector<ir::NodeId>& terms,
                                       bool uses_score = false);
// The same of the terms of sums.
std::vector<ir::NodeId> carried_by_sums(const Mod& mod, const std::vector<ir::NodeId>& sums);

} // namespace flexc::passes
