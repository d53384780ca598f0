// What is known of each node of a mod's graph. Found once, in the pipeline; what adds nodes to a
// mod afterwards finds it again.
#pragma once

#include "passes/mod.h"

namespace flexc::passes {

// Fills everything that has one entry per node.
void find_facts(Mod& mod);
// Finds them again, with the order of nodes, if the graph has got nodes since it had this many.
void find_facts_since(Mod& mod, std::size_t known);

} // namespace flexc::passes
