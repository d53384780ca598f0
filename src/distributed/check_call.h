// Checks a call's tensors against the plan before anything is sent. Messages name the tensor and
// what was expected.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "distributed/state.h"

namespace flexc::distributed {

// Returns the caller's buffers, the buffers that describe requests, and empty tensors for sharded
// buffers (or gradients) of which this rank has no rows.
std::vector<NamedTensor> completed(const detail::DistributedPlanState& plan,
                                   std::span<const NamedTensor> given, bool are_gradients);

Result<void> check_forward(const detail::DistributedPlanState& plan, const ForwardTensors& tensors,
                           std::span<const NamedTensor> buffers);

using GradientViews = std::array<TensorView, ir::kMaxBuffers>; // one for each of the program's

Result<void> check_backward(const detail::DistributedPlanState& plan,
                            const BackwardTensors& tensors, std::span<const NamedTensor> buffers,
                            std::span<const NamedTensor> gradients, GradientViews& views);

} // namespace flexc::distributed
