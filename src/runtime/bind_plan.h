// Makes a plan's values: sizes, parameters, lengths of requests, variants and workspace. Checks
// what the caller passes by size_checks.h and buffers.h, whose messages say what was expected.
#pragma once

#include <memory>
#include <span>

#include "common/length_arrays.h"
#include "flexc/kernel.h"
#include "flexc/result.h"
#include "runtime/state.h"

namespace flexc::runtime {

// Binds named dims from the buffers.
Result<detail::PlanState> bind_plan(const detail::KernelState& kernel, const Sizes& sizes,
                                    std::span<const NamedTensor> buffers,
                                    const PlanOptions& options);

// Makes a plan's lengths of requests, and the work that follows from them.
Result<std::shared_ptr<Sequences>> bind_lengths(const detail::KernelState& kernel,
                                                const detail::PlanState& plan,
                                                const Lengths& lengths);
// Replaces the plan's lengths by those of arrays on the device.
Result<LengthArrays> bind_length_arrays(const detail::KernelState& kernel,
                                        const detail::PlanState& plan, const Lengths& lengths);

// The part of bind_plan() that needs no compiled kernel: sizes, offsets, the scale and parameters.
// Sizes that no buffer binds are kUnbound.
Result<detail::PlanState> bind_values(const ir::Program& program, int head_dim, int head_dim_v,
                                      const Sizes& sizes, std::span<const NamedTensor> buffers,
                                      const PlanOptions& options);

} // namespace flexc::runtime
