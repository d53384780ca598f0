// A rank's own queries attend to keys that are sent to it: the next step's keys are transferred
// while this step is computed, and gradients of keys are sent back a step later.
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
