// Uses ranges to settle what is the same at every point: `kv_idx < KV_LEN`, `max(kv_idx, 0)`.
#pragma once

#include <span>

#include "ir/program.h"

namespace flexc::passes {

// Replaces decided nodes in all that the roots need; the roots then name nodes of the new graph.
void decide(ir::Program& program, std::span<ir::NodeId* const> roots);

} // namespace flexc::passes
