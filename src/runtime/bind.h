// Turns what a caller passes into what kernels read: sizes, parameters, argument words. Checks it
// by size_checks.h, tensor_rules.h and buffers.h, whose messages name the tensor and what was
// expected.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "flexc/kernel.h"
#include "flexc/result.h"
#include "runtime/state.h"

namespace flexc::runtime {

// Makes a plan's values: checks sizes and parameters, and binds named dims from the buffers.
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

// The part of bind_plan() that needs no compiled kernel: everything but the workspace. Sizes that
// no buffer binds are kUnbound.
Result<detail::PlanState> bind_values(const ir::Program& program, int head_dim, int head_dim_v,
                                      const Sizes& sizes, std::span<const NamedTensor> buffers,
                                      const PlanOptions& options);

struct BoundCall {
    AttentionArguments attention{};
    std::array<std::uint64_t, passes::kMaxArgumentWords> words;
    std::size_t word_count = 0;
    std::array<TensorView, ir::kMaxBuffers> gradients{}; // f32
    std::array<TensorView, ir::kMaxBuffers>
        rounded_gradients{}; // what some of them become afterwards
    bool accumulate_gradients = false;
    CpuThreads cpu_threads;
    PassVariants variants;
    std::shared_ptr<const Sequences> sequences; // null: dense
    const plan::FewWork* few_work = nullptr;    // of these
    SequenceArguments sequence_arguments{};

    // The call's spans point into this object.
    Call view(Workspace workspace, Stream stream) const;
};

// Fills `call` with everything that building a block mask reads. False if a buffer of the mask is
// not given.
bool bind_mask(const detail::KernelState& kernel, const detail::PlanState& plan,
               std::span<const NamedTensor> buffers, BoundCall& call);

// Fill `call` in place: a launch allocates nothing.
Result<void> bind_forward(const detail::KernelState& kernel, const detail::PlanState& plan,
                          const ForwardTensors& tensors, std::span<const NamedTensor> buffers,
                          BoundCall& call);
Result<void> bind_backward(const detail::KernelState& kernel, const detail::PlanState& plan,
                           const BackwardTensors& tensors, std::span<const NamedTensor> buffers,
                           std::span<const NamedTensor> gradients, Workspace workspace,
                           BoundCall& call);

} // namespace flexc::runtime
