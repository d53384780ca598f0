// Turns the tensors of a call into what kernels read: the arguments of attention and the program's
// words. Checks them by tensor_rules.h and buffers.h, whose messages name the tensor and what was
// expected.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "flexc/kernel.h"
#include "flexc/result.h"
#include "runtime/state.h"

namespace flexc::runtime {

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
    bool is_inside = true;                      // see Call
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

// Steps of these, for the calls that plan() makes up (expected_calls.h).
void start_call(const detail::PlanState& plan, BoundCall& call);
// set_tensors() checks the tensors and sets their arguments, set_arguments() only sets them.
Result<void> set_tensors(const detail::KernelState& kernel, const detail::PlanState& plan,
                         const ForwardTensors& tensors, BoundCall& call);
Result<void> set_tensors(const detail::KernelState& kernel, const detail::PlanState& plan,
                         const BackwardTensors& tensors, BoundCall& call);
void set_arguments(const detail::KernelState& kernel, const detail::PlanState& plan,
                   const ForwardTensors& tensors, AttentionArguments& attention);
void set_arguments(const detail::KernelState& kernel, const detail::PlanState& plan,
                   const BackwardTensors& tensors, AttentionArguments& attention);
// buffers: a view for each of the program's.
void fill_words(const detail::KernelState& kernel, const detail::PlanState& plan,
                std::span<const TensorView> buffers, BoundCall& call);

// Whether a buffer has a gradient whose f32 sums are rounded to another type.
bool is_rounded(const detail::KernelState& kernel, const ir::Buffer& buffer);
// Returns the tensor in which kernels sum the gradient of one buffer.
TensorView sums_of(const detail::PlanState& plan, const ir::Buffer& buffer);

} // namespace flexc::runtime
