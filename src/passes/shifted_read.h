// Reads whose addresses are affine in q and kv, for kernels that copy a tile of them line by line.
// A line belongs to a query or to a key; its elements are contiguous in the last dim.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

// More would take shared memory that tiles of keys need.
inline constexpr std::size_t kMostShiftedReads = 4;

// Whether an address is affine in q and kv, and rows of elements are not those of a dense bias:
// they begin elsewhere, or are those of keys.
bool is_copied_as_shifted(const Mod& mod, ir::NodeId read);

// Returns what these roots read for each element, if any of it is shifted: the shifted reads and
// the dense biases. If there are more than `most`, those that gain most: shifted ones and narrow
// elements first. Adds nodes to the mod's graph and finds its facts again.
std::vector<ShiftedRead> stage_shifts(Mod& mod, const std::vector<ir::NodeId>& roots,
                                      std::size_t most = kMostShiftedReads);

// Whether some tiles lie beyond a clamp, so that each line of all reads is a single element.
bool have_ends(const std::vector<ShiftedRead>& reads);

// If the addend is a sum of constant multiples of these reads, returns the multiples; else empty.
std::vector<double> factors_of_shifts(const ir::Graph& graph, const std::vector<ShiftedRead>& reads,
                                      ir::NodeId addend);

// Fills ReadGradient::is_shifted, Mod::shifted_reads if there is any, and Mod::shifted_bias, from
// the mod's facts.
void find_shifted_reads(Mod& mod);

} // namespace flexc::passes
