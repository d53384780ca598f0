// Masks whose visible elements lie in a band of diagonals: causal, sliding windows, their shifts.
#pragma once

#include <vector>

#include "ir/program.h"

namespace flexc::analysis {

// Every visible element has kv_idx - q_idx <= each of `high` and >= each of `low`; the bounds are
// integer nodes that use neither q, kv nor score. Bounds are built into the graph when needed.
struct Band {
    std::vector<ir::NodeId> low, high;
    bool exact = false; // the mask says nothing else
    bool found() const { return !low.empty() || !high.empty(); }
};

Band band_of(ir::Graph& graph, ir::NodeId mask);

} // namespace flexc::analysis
