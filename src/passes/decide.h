// Uses ranges to decide values that are the same at every point, `kv_idx < KV_LEN` or `max(kv_idx,
// 0)`, and for algebra that holds where nothing overflows.
#pragma once

#include <span>

#include "ir/program.h"

namespace flexc::passes {

// Replaces decided nodes by their values, in everything that the roots need. The roots then name
// nodes of the new graph.
void decide(ir::Program& program, std::span<ir::NodeId* const> roots);

} // namespace flexc::passes
