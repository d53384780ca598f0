// What all batch entries of a head share: kernels that visit them one after another may compute it
// once.
#pragma once

#include "passes/mod.h"

namespace flexc::passes {

// Returns the only real value of the score mod that each element computes from h, q and kv alone:
// the largest such expression that costs more than loading a number. kNoNode if there are none or
// several.
ir::NodeId shared_value(const Mod& mod);

} // namespace flexc::passes
