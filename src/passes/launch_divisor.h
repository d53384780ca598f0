// Integers that are the same for a launch and that positions are divided by. The host finds their
// reciprocals, so that kernels multiply instead of dividing 64-bit integers.
#pragma once

#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

// Whether a node is the quotient or the remainder of such a division.
bool divides_by_reciprocal(const Mod& mod, ir::NodeId id);

// The divisors of those that some root needs, in the order of the graph; the first ones if there
// are more than kMaxLaunchDivisors.
std::vector<ir::NodeId> launch_divisors(const Mod& mod);

} // namespace flexc::passes
