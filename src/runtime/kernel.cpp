#include "flexc/kernel.h"

#include "runtime/alignment.h"
#include "runtime/bind.h"
#include "runtime/buffers.h"
#include "runtime/state.h"
#include "support/text.h"

namespace flexc {

namespace {

Error empty_handle() {
    return {ErrorCode::invalid_option,
            "this kernel handle is empty: it did not come from compile()"};
}

Result<void> check_plan(const detail::KernelState* kernel, const Plan& plan,
                        const detail::PlanState* state) {
    if (kernel == nullptr) return empty_handle();
    if (state == nullptr || state->kernel.get() != kernel)
        return Error{ErrorCode::invalid_option,
                     "this plan was not made by this kernel: call plan() on it"};
    (void)plan;
    return {};
}

Result<void> check_workspace(const detail::PlanState& plan, Workspace workspace) {
    if (plan.workspace_bytes > 0 &&
        (workspace.data == nullptr || workspace.bytes < plan.workspace_bytes))
        return Error{ErrorCode::invalid_option,
                     formatted("the workspace holds {} bytes; the plan needs {}",
                               workspace.data == nullptr ? 0 : workspace.bytes,
                               plan.workspace_bytes)};
    return {};
}

// Builds the plan's map where all that the mask reads is there; else calls find room for one.
Result<void> plan_tiles(const detail::KernelState& kernel, detail::PlanState& plan,
                        std::span<const NamedTensor> buffers, Stream stream) {
    if (plan.map_bytes == 0) return {};
    runtime::BoundCall bound;
    if (!runtime::bind_mask(kernel, plan, buffers, bound)) {
        plan.map_offset = runtime::aligned(plan.workspace_bytes);
        plan.workspace_bytes = plan.map_offset + plan.map_bytes;
        return {};
    }
    auto map = kernel.executable->allocate_map(plan.map_bytes);
    if (!map) return map.error();
    plan.map = std::move(*map);
    runtime::Call call = bound.view({}, stream);
    call.map = plan.map.get();
    return kernel.executable->build_map(call);
}

// The plan's map, or a new one in the workspace.
Result<void> use_map(const detail::KernelState& kernel, const detail::PlanState& plan,
                     runtime::Call& call) {
    call.map = plan.map.get();
    if (plan.map_bytes == 0 || plan.map) return {};
    call.map = static_cast<std::byte*>(call.workspace.data) + plan.map_offset;
    return kernel.executable->build_map(call);
}

} // namespace

Result<void> Kernel::update(const Plan& plan, std::span<const NamedTensor> buffers,
                            Stream stream) const {
    if (auto checked = check_plan(state_.get(), plan, plan.state_.get()); !checked) return checked;
    const detail::PlanState& state = *plan.state_;
    if (!state.map) return {}; // there is none, or each call builds its own
    std::vector<std::int64_t> sizes = state.size_values;
    if (auto checked = runtime::bind_sizes(state_->mod.program, buffers, sizes); !checked)
        return checked;
    runtime::BoundCall bound;
    if (!runtime::bind_mask(*state_, state, buffers, bound))
        return Error{ErrorCode::invalid_option, "a buffer that the mask reads is missing"};
    runtime::Call call = bound.view({}, stream);
    call.map = state.map.get();
    return state_->executable->build_map(call);
}

std::size_t Plan::workspace_bytes() const { return state_ ? state_->workspace_bytes : 0; }
std::size_t Plan::map_bytes() const { return state_ ? state_->map_bytes : 0; }
const Sizes& Plan::sizes() const { return state_->sizes; }

Result<Plan> Kernel::plan(const Sizes& sizes, std::span<const NamedTensor> buffers, Stream stream,
                          const PlanOptions& options) const {
    if (!state_) return empty_handle();
    auto bound = runtime::bind_plan(*state_, sizes, buffers, options);
    if (!bound) return bound.error();
    bound->kernel = state_;
    if (auto done = plan_tiles(*state_, *bound, buffers, stream); !done) return done.error();
    return Plan(std::make_shared<const detail::PlanState>(std::move(*bound)));
}

Result<void> Kernel::forward(const Plan& plan, const ForwardTensors& tensors,
                             std::span<const NamedTensor> buffers, Workspace workspace,
                             Stream stream) const {
    if (auto checked = check_plan(state_.get(), plan, plan.state_.get()); !checked) return checked;
    if (auto checked = check_workspace(*plan.state_, workspace); !checked) return checked;
    runtime::BoundCall bound;
    if (auto done = runtime::bind_forward(*state_, *plan.state_, tensors, buffers, bound); !done)
        return done;
    runtime::Call call = bound.view(workspace, stream);
    if (auto done = use_map(*state_, *plan.state_, call); !done) return done;
    return state_->executable->forward(call);
}

Result<void> Kernel::backward(const Plan& plan, const BackwardTensors& tensors,
                              std::span<const NamedTensor> buffers,
                              std::span<const NamedTensor> buffer_gradients, Workspace workspace,
                              Stream stream) const {
    if (auto checked = check_plan(state_.get(), plan, plan.state_.get()); !checked) return checked;
    if (!state_->options.backward)
        return Error{ErrorCode::invalid_option,
                     "this kernel was compiled without backward: set CompileOptions::backward"};
    if (auto checked = check_workspace(*plan.state_, workspace); !checked) return checked;
    runtime::BoundCall bound;
    if (auto done = runtime::bind_backward(*state_, *plan.state_, tensors, buffers,
                                           buffer_gradients, workspace, bound);
        !done)
        return done;
    runtime::Call call = bound.view(workspace, stream);
    if (auto done = use_map(*state_, *plan.state_, call); !done) return done;
    if (auto done = state_->executable->backward(call); !done) return done;
    for (std::size_t i = 0; i < bound.gradients.size(); ++i)
        if (const TensorView& rounded = bound.rounded_gradients[i])
            if (auto done = state_->executable->round(bound.gradients[i], rounded, stream); !done)
                return done;
    return {};
}

Result<bool> Kernel::out_of_range() const {
    if (!state_) return empty_handle();
    if (!state_->options.report_out_of_range)
        return Error{ErrorCode::invalid_option, "this kernel was compiled without reporting: set "
                                                "CompileOptions::report_out_of_range"};
    return state_->executable->take_out_of_range();
}

const CompileOptions& Kernel::options() const { return state_->options; }
std::span<const KernelInfo> Kernel::kernels() const { return state_->executable->kernels(); }
double Kernel::compile_ms() const { return state_->compile_ms; }
bool Kernel::from_cache() const { return state_->from_cache; }
Device Kernel::device() const { return state_->device; }

} // namespace flexc
