// What the mask of a whole problem shows, as far as intervals of tiles tell.
#pragma once

#include <span>

#include "distributed/tensor_work.h"
#include "distributed/visible_map.h"
#include "passes/mod.h"
#include "runtime/state.h"

namespace flexc::distributed {

// Sizes and params of the whole problem.
Result<detail::PlanState> bind_whole(const Kernel& kernel, const Sizes& sizes,
                                     std::span<const NamedTensor> buffers,
                                     const DistributedOptions& options);

// What intervals do not tell counts as visible.
Result<VisibleMap> mask_map(const passes::Mod& mod, const detail::PlanState& whole, RankWork& work,
                            std::span<const NamedTensor> buffers);

} // namespace flexc::distributed
