// A rank's own queries with the keys that come to it: those of the next step travel while those of
// this one are computed with, and their gradients go home a step later.
#pragma once

#include <span>

#include "flexc/distributed.h"

namespace flexc::detail {
struct DistributedPlanState;
}

namespace flexc::distributed {

Result<void> forward_by_keys(const detail::DistributedPlanState& plan,
                             const ForwardTensors& tensors, std::span<const NamedTensor> buffers);
// Adds to the f32 sums of buffers' gradients.
Result<void> backward_by_keys(const detail::DistributedPlanState& plan,
                              const BackwardTensors& tensors, std::span<const NamedTensor> buffers,
                              std::span<const NamedTensor> sum_views);

} // namespace flexc::distributed
