// What all batch entries of a head have in common: kernels that visit these one after another may
// compute it once.
#pragma once

#include "passes/mod.h"

namespace flexc::passes {

// The one real value of the score mod that each element computes from h, q and kv alone: the
// largest such expression that costs more than reading a number. kNoNode: there is none, or
// several.
ir::NodeId shared_value(const Mod& mod);

} // namespace flexc::passes
