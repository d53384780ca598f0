// What a candidate of Hopper's fused backward may spill before it gives way to a later one.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/arch/sm90/backward_tile.h"

namespace flexc::plan::sm90 {

// Of tile all[at], whose configuration is `config` but for these limits.
SpillLimits spill_limits(const KernelRequest& request, const std::vector<FusedTile>& all,
                         std::size_t at, const KernelConfig& config);

} // namespace flexc::plan::sm90
