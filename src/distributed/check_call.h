// A call's tensors against what the plan says, before anything travels: messages name the tensor
// and what was expected.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "distributed/state.h"

namespace flexc::distributed {

// What the caller gave, and what requests are known by; of sharded buffers without rows, or their
// gradients, a tensor of none.
std::vector<NamedTensor> completed(const detail::DistributedPlanState& plan,
                                   std::span<const NamedTensor> given, bool are_gradients);

Result<void> check_forward(const detail::DistributedPlanState& plan, const ForwardTensors& tensors,
                           std::span<const NamedTensor> buffers);

using GradientViews = std::array<TensorView, ir::kMaxBuffers>; // one for each of the program's

Result<void> check_backward(const detail::DistributedPlanState& plan,
                            const BackwardTensors& tensors, std::span<const NamedTensor> buffers,
                            std::span<const NamedTensor> gradients, GradientViews& views);

} // namespace flexc::distributed
