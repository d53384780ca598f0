// The calls that a plan is made for: with the tensors that the caller describes, or with contiguous
// ones.
#pragma once

#include <span>

#include "flexc/kernel.h"
#include "flexc/result.h"
#include "runtime/state.h"

namespace flexc::runtime {

// Chooses the variants of the passes for these calls, and compiles them if needed.
Result<void> choose_variants(const detail::KernelState& kernel, detail::PlanState& plan,
                             std::span<const NamedTensor> buffers, const PlanOptions& options);

} // namespace flexc::runtime
