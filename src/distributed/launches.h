// Makes the launches of a rank's part of a schedule, and decides where their results are merged.
#pragma once

#include <span>

#include "distributed/schedule.h"
#include "distributed/state.h"

namespace flexc::distributed {

// Fills the plan's schedule and everything derived from it. pieces: into how many parts the KV
// heads are divided, each a step of its own.
Result<void> plan_launches(detail::DistributedPlanState& plan, const Schedule& schedule,
                           std::span<const NamedTensor> buffers, const DistributedOptions& options,
                           int pieces);

} // namespace flexc::distributed
