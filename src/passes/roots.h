// The values that a Mod is about, so that each pass sees and renames all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ir/print.h"
#include "passes/mod.h"

namespace flexc::passes {

std::vector<ir::NodeId*> roots_of(Mod& mod);
std::vector<ir::NodeId> root_nodes(const Mod& mod);
// "score", "mask", "d score", "d slopes[1]", ...
std::vector<ir::NamedRoot> named_roots(const Mod& mod);

// Rebuilds the graph with integer constants for the nodes that `constant` gives one for.
void substitute(Mod& mod,
                const std::function<std::optional<std::int64_t>(const ir::Node&)>& constant);

// Reads that became equal share one gradient; a derivative that became 0 is dropped.
void merge_gradients(Mod& mod);

} // namespace flexc::passes
