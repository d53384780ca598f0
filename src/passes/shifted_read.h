// Reads whose addresses are affine in q and kv, for kernels that copy a tile of them line by line:
// along a line, which is a query's or a key's, elements are side by side in the last dim.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

struct ShiftedRead {
    ir::NodeId read = ir::kNoNode;
    bool by_key = false; // a line is a key's, and queries are along it
    // What the last index gains from one query, and one key, to the next: along a line, 1 or -1.
    int query_step = 0, key_step = 0;
    ir::NodeId index = ir::kNoNode; // the last index without its clamp
    // What the clamp bounds it by; kNoNode: nothing. Beyond other ends are no elements.
    ir::NodeId least = ir::kNoNode, most = ir::kNoNode;
};

// More take shared memory that tiles need.
inline constexpr std::size_t kMostShiftedReads = 4;

// What the values of these roots read for each element, where something of it is shifted: that,
// and dense biases beside it. Adds nodes to the mod's graph and finds its facts again.
std::vector<ShiftedRead> stage_shifts(Mod& mod, const std::vector<ir::NodeId>& roots);

} // namespace flexc::passes
