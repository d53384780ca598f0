// The root values of a Mod, so that each pass visits and renames all of them.
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

// Rebuilds the graph, replacing those nodes for which `constant` returns an integer.
void substitute(Mod& mod,
                const std::function<std::optional<std::int64_t>(const ir::Node&)>& constant);

// Merges the gradients of reads that have become equal, and drops derivatives that have become 0.
void merge_gradients(Mod& mod);

} // namespace flexc::passes
