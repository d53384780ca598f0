// Computes what the mask of a whole problem shows, by interval arithmetic on tiles.
#pragma once

#include <span>

#include "distributed/tensor_work.h"
#include "distributed/visible_map.h"
#include "passes/mod.h"
#include "runtime/state.h"

namespace flexc::distributed {

// Binds the sizes and params of the whole problem.
Result<detail::PlanState> bind_whole(const Kernel& kernel, const Sizes& sizes,
                                     std::span<const NamedTensor> buffers,
                                     const DistributedOptions& options);

// Tiles that intervals cannot decide count as visible.
Result<VisibleMap> mask_map(const passes::Mod& mod, const detail::PlanState& whole, RankWork& work,
                            std::span<const NamedTensor> buffers);

} // namespace flexc::distributed
