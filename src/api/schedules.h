// How the forward kernel divides its work, where it has a choice: asked for, or kept in the cache.
#pragma once

#include <optional>
#include <vector>

#include "api/cuda_kernels.h"
#include "cuda/schedule.h"

namespace flexc::api {

// flexc's own choice first; empty where there is no choice.
std::vector<cuda::ForwardSchedule>
schedules_of(const passes::Mod& mod, const CompileOptions& options, const Target& target);
// CompileOptions::schedule as a value; none when it is empty.
Result<std::optional<cuda::ForwardSchedule>>
asked_schedule(const passes::Mod& mod, const CompileOptions& options, const Target& target);

} // namespace flexc::api
