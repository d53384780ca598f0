#include "runtime/expected_calls.h"

#include <algorithm>
#include <array>
#include <bit>

#include "runtime/alignment.h"
#include "runtime/bind_call.h"
#include "runtime/buffers.h"
#include "runtime/mask_values.h"
#include "runtime/tensor_rules.h"

namespace flexc::runtime {

using detail::KernelState;
using detail::PlanState;

namespace {

// Returns the tensor that plan() assumes if the caller does not describe it: contiguous, at an
// aligned address that is never read.
TensorView assumed(DType dtype, std::span<const std::int64_t> shape) {
    return TensorView::contiguous(std::bit_cast<void*>(std::uintptr_t{kAlignment}), dtype, shape);
}

BackwardTensors assumed_tensors(const KernelState& kernel, const PlanState& plan) {
    BoundCall call;
    start_call(plan, call);
    const TensorRules rule(kernel, plan.sizes, call.sequences.get());
    const DType dtype = kernel.options.dtype;
    const std::int64_t d = kernel.options.head_dim, dv = kernel.options.head_dim_v;
    const DType of_gradients = plan.accumulate_gradients ? DType::f32 : dtype;
    const DType of_keys = kernel.options.kv_dtype.value_or(dtype);
    BackwardTensors tensors;
    const auto like = [](const TensorRule& one, DType type) {
        return assumed(type, std::span(one.shape).first(static_cast<std::size_t>(one.rank)));
    };
    tensors.q = like(rule.of_queries("q", tensors.q, d), dtype);
    tensors.k = like(rule.of_keys("k", tensors.k, d), of_keys);
    tensors.v = like(rule.of_keys("v", tensors.v, dv), of_keys);
    tensors.o = tensors.d_out = like(rule.of_queries("o", tensors.o, dv), dtype);
    tensors.lse = like(rule.of_rows("lse", tensors.lse), DType::f32);
    tensors.dq =
        like(rule.of_queries("dq", tensors.dq, d), plan.accumulate_dq ? DType::f32 : dtype);
    tensors.dk = like(rule.of_keys("dk", tensors.dk, d), of_gradients);
    tensors.dv = like(rule.of_keys("dv", tensors.dv, dv), of_gradients);
    return tensors;
}

// Replaces the assumed tensor by the given one. For layouts of requests only if ranks match: rows
// change with the lengths, so calls check these tensors.
void expect(TensorView& usual, const TensorView& given, bool is_dense) {
    if (given && (is_dense || given.rank == usual.rank)) usual = given;
}
ForwardTensors expected(const ForwardTensors& usual, const ForwardTensors& given, bool is_dense) {
    ForwardTensors tensors = usual;
    for (TensorView ForwardTensors::* const one :
         {&ForwardTensors::q, &ForwardTensors::k, &ForwardTensors::v, &ForwardTensors::o,
          &ForwardTensors::lse})
        expect(tensors.*one, given.*one, is_dense);
    return tensors;
}
BackwardTensors expected(const BackwardTensors& usual, const BackwardTensors& given,
                         bool is_dense) {
    BackwardTensors tensors = usual;
    for (TensorView BackwardTensors::* const one :
         {&BackwardTensors::q, &BackwardTensors::k, &BackwardTensors::v, &BackwardTensors::o,
          &BackwardTensors::lse, &BackwardTensors::d_out, &BackwardTensors::d_lse,
          &BackwardTensors::dq, &BackwardTensors::dk, &BackwardTensors::dv})
        expect(tensors.*one, given.*one, is_dense);
    return tensors;
}

// Sets the given buffers in the call, and the assumed ones for all others.
void expect_buffers(const KernelState& kernel, const PlanState& plan,
                    std::span<const NamedTensor> given, bool backward, BoundCall& call) {
    const ir::Program& program = kernel.mod.program;
    std::array<TensorView, ir::kMaxBuffers> views{};
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
        const ir::Buffer& buffer = program.buffers[i];
        const auto named = std::ranges::find(given, buffer.name, &NamedTensor::name);
        const TensorView sums = sums_of(plan, buffer);
        views[i] = named != given.end() && named->tensor ? named->tensor
                                                         : assumed(buffer.dtype, shape_of(sums));
        if (backward && buffer.grad) call.gradients[i] = assumed(DType::f32, shape_of(sums));
    }
    call.accumulate_gradients = backward && plan.accumulate_gradients;
    fill_words(kernel, plan, views, call);
}

} // namespace

Result<void> choose_variants(const KernelState& kernel, PlanState& plan,
                             std::span<const NamedTensor> buffers, const PlanOptions& options) {
    const BackwardTensors usual = assumed_tensors(kernel, plan);
    BoundCall forward, backward;
    const auto set = [&](const auto& of_pass, const auto* given, BoundCall& call) -> Result<void> {
        start_call(plan, call);
        const bool is_dense = plan.sequences == nullptr;
        const auto tensors = given == nullptr ? of_pass : expected(of_pass, *given, is_dense);
        if (is_dense) return set_tensors(kernel, plan, tensors, call);
        set_arguments(kernel, plan, tensors, call.attention);
        return {};
    };
    const ForwardTensors usual_forward = {usual.q, usual.k, usual.v, usual.o, usual.lse};
    if (auto done = set(usual_forward, options.forward, forward); !done) return done;
    expect_buffers(kernel, plan, buffers, false, forward);
    const bool has_backward = kernel.options.backward;
    if (has_backward) {
        if (auto done = set(usual, options.backward, backward); !done) return done;
        expect_buffers(kernel, plan, buffers, true, backward);
    }
    const Call backward_call = backward.view({}, {});
    auto chosen =
        kernel.executable->choose(forward.view({}, {}), has_backward ? &backward_call : nullptr,
                                  visible_keys(kernel.mod, plan));
    if (!chosen) return chosen.error();
    plan.variants = *chosen;
    return {};
}

} // namespace flexc::runtime
