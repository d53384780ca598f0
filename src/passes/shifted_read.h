// Reads whose addresses are affine in q and kv, for kernels that copy a tile of them line by line:
// along a line, which is a query's or a key's, elements are side by side in the last dim.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

// More take shared memory that tiles need.
inline constexpr std::size_t kMostShiftedReads = 4;

// What the values of these roots read for each element, where something of it is shifted: that,
// and dense biases beside it. Of more than `most`, those that gain most by a tile: shifted ones and
// narrow elements first. Adds nodes to the mod's graph and finds its facts again.
std::vector<ShiftedRead> stage_shifts(Mod& mod, const std::vector<ir::NodeId>& roots,
                                      std::size_t most = kMostShiftedReads);

// Whether there are tiles in which each line of all reads has one element: the end of a clamp.
bool have_ends(const std::vector<ShiftedRead>& reads);

// Where an addend is a sum of constant multiples of these reads, the multiples; empty for others.
std::vector<double> factors_of_shifts(const ir::Graph& graph, const std::vector<ShiftedRead>& reads,
                                      ir::NodeId addend);

// Fills ReadGradient::is_shifted, and Mod::shifted_reads where one is. From the mod's facts.
void find_shifted_gradients(Mod& mod);

} // namespace flexc::passes
