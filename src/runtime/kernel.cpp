#include "flexc/kernel.h"

#include <algorithm>
#include <optional>

#include "runtime/alignment.h"
#include "runtime/bind_call.h"
#include "runtime/bind_plan.h"
#include "runtime/buffers.h"
#include "runtime/state.h"
#include "support/guarded.h"
#include "support/key_layout.h"
#include "support/text.h"

namespace flexc {

namespace {

Error empty_handle() {
    return {ErrorCode::invalid_option,
            "this kernel handle is empty: it did not come from compile()"};
}

Result<void> check_plan(const detail::KernelState* kernel, const detail::PlanState* state) {
    if (kernel == nullptr) return empty_handle();
    if (state == nullptr || state->kernel.get() != kernel)
        return Error{ErrorCode::invalid_option,
                     "this plan was not made by this kernel: call plan() on it"};
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

// Builds the plan's block mask if everything that the mask reads is given; otherwise each call
// builds one in its workspace, as it does for requests, whose lengths change.
Result<void> plan_tiles(const detail::KernelState& kernel, detail::PlanState& plan,
                        std::span<const NamedTensor> buffers, Stream stream, bool per_call) {
    if (plan.block_mask_bytes == 0) return {};
    runtime::BoundCall bound;
    if (per_call || plan.sequences != nullptr ||
        !runtime::bind_mask(kernel, plan, buffers, bound)) {
        plan.block_mask_offset = runtime::aligned(plan.workspace_bytes);
        plan.workspace_bytes = plan.block_mask_offset + plan.block_mask_bytes;
        return {};
    }
    auto memory = kernel.executable->allocate_for_plan(plan.block_mask_bytes);
    if (!memory) return memory.error();
    plan.block_mask = std::move(*memory);
    runtime::Call call = bound.view({}, stream);
    call.block_mask = plan.block_mask.get();
    return kernel.executable->build_block_mask(call, {});
}

// Copies lengths to where launches read them, if that is not host memory.
Result<void> store_sequences(const detail::KernelState& kernel, const detail::PlanState& plan,
                             const runtime::Sequences& sequences, Stream stream) {
    if (!kernel.executable->reads_sequences_of_plan()) return {};
    return kernel.executable->copy_for_plan(plan.sequences->memory.get(), sequences.pieces(),
                                            stream);
}

Result<void> plan_sequences(const detail::KernelState& kernel, const detail::PlanState& plan,
                            Stream stream) {
    if (plan.sequences == nullptr || !kernel.executable->reads_sequences_of_plan()) return {};
    const auto sequences = plan.sequences->get();
    const std::size_t bytes = runtime::SequenceState::bytes_for(plan.sizes, *sequences);
    auto memory = kernel.executable->allocate_for_plan(std::max<std::size_t>(bytes, 1));
    if (!memory) return memory.error();
    plan.sequences->memory = std::move(*memory);
    return store_sequences(kernel, plan, *sequences, stream);
}

// Checks new lengths against what launches were told when the plan was made: rows of entries, and
// the rows for which the workspace of a backward or of block masks has room.
Result<void> check_room(const detail::KernelState& kernel, const detail::PlanState& plan,
                        const runtime::Sequences& sequences) {
    if (!kernel.executable->reads_sequences_of_plan()) return {};
    const std::int64_t rows = sequences.key_extents.rows;
    const std::int64_t planned = plan.sequences->get()->key_extents.rows;
    if (rows != planned)
        return Error{ErrorCode::invalid_option,
                     formatted("{} is {}; the plan was made for {}",
                               support::key_layout(kernel.options.key_layout).row_count, rows,
                               planned)};
    const bool has_backward = kernel.options.backward;
    if (!has_backward && !kernel.executable->has_block_masks()) return {};
    const std::int64_t q_rows = has_backward ? plan.q_rows : plan.mask_q_rows;
    const std::int64_t kv_rows = has_backward ? plan.kv_rows : plan.mask_kv_rows;
    if (sequences.q_rows <= q_rows && sequences.kv_rows <= kv_rows) return {};
    return Error{
        ErrorCode::invalid_option,
        formatted("the requests have {} rows of queries and {} of keys; the plan has "
                  "workspace for {} and {}: give plan() tensors with as many rows as there "
                  "will be (PlanOptions::forward, backward)",
                  sequences.q_rows, sequences.kv_rows, q_rows, kv_rows)};
}

Result<void> check_has_lengths(const detail::PlanState& plan) {
    if (plan.sequences != nullptr) return {};
    return Error{ErrorCode::invalid_option,
                 "this kernel was compiled for dense tensors, which have no lengths"};
}

// What makes the plan's records of requests on the device from lengths in its memory, once the plan
// knows that the device does so.
struct LengthReading {
    LengthArrays arrays;
    SequenceRecords to;

    Result<void> launch(const runtime::Executable& executable, Stream stream) const {
        return executable.read_lengths(arrays, to, stream);
    }
};
Result<LengthReading> bind_length_reading(const detail::KernelState& kernel,
                                          const detail::PlanState& plan, const Lengths& lengths) {
    auto arrays = runtime::bind_length_arrays(kernel, plan, lengths);
    if (!arrays) return arrays.error();
    LengthReading reading{*arrays, plan.sequences->records(plan.sizes)};
    reading.to.is_wrong = static_cast<int*>(kernel.executable->out_of_range_flag());
    return reading;
}

// The same for a call that has lengths: nothing if it has none, or if the host compares them with
// the plan's.
Result<std::optional<LengthReading>> bind_lengths_of_call(const detail::KernelState& kernel,
                                                          const detail::PlanState& plan,
                                                          const LengthTensors* tensors) {
    if (tensors == nullptr || plan.sequences == nullptr ||
        !kernel.executable->reads_sequences_of_plan())
        return std::optional<LengthReading>();
    auto lengths = plan.sequences->get()->given_by(*tensors);
    if (!lengths) return lengths.error();
    auto reading = bind_length_reading(kernel, plan, *lengths);
    if (!reading) return reading.error();
    return std::optional(*reading);
}

// Uses the plan's block mask, or builds one in the workspace in stream order, also in a graph, so
// that it matches the lengths and buffers that the pass reads.
Result<void> use_block_mask(const detail::KernelState& kernel, const detail::PlanState& plan,
                            runtime::Pass pass, runtime::Call& call) {
    call.block_mask = plan.block_mask.get();
    if (plan.block_mask_bytes == 0 || plan.block_mask) return {};
    call.block_mask = static_cast<std::byte*>(call.workspace.data) + plan.block_mask_offset;
    return kernel.executable->build_block_mask(call, pass);
}

} // namespace

Result<void> Kernel::update(const Plan& plan, std::span<const NamedTensor> buffers,
                            Stream stream) const {
    return guarded([&]() -> Result<void> {
        if (auto checked = check_plan(state_.get(), plan.state_.get()); !checked) return checked;
        const detail::PlanState& state = *plan.state_;
        if (!state.block_mask) return {}; // there is none, or each call builds its own
        std::vector<std::int64_t> sizes = state.size_values;
        if (auto checked = runtime::bind_sizes(state_->mod.program, buffers, sizes); !checked)
            return checked;
        runtime::BoundCall bound;
        if (!runtime::bind_mask(*state_, state, buffers, bound))
            return Error{ErrorCode::invalid_option, "a buffer that the mask reads is missing"};
        runtime::Call call = bound.view({}, stream);
        call.block_mask = state.block_mask.get();
        return state_->executable->build_block_mask(call, {});
    });
}

Result<void> Kernel::update(const Plan& plan, const Lengths& lengths, Stream stream) const {
    return guarded([&]() -> Result<void> {
        if (auto checked = check_plan(state_.get(), plan.state_.get()); !checked) return checked;
        const detail::PlanState& state = *plan.state_;
        if (auto checked = check_has_lengths(state); !checked) return checked;
        if (lengths.on_device)
            return Error{ErrorCode::invalid_option,
                         "Lengths::on_device is for plan(): give update() the arrays as "
                         "LengthTensors"};
        auto bound = runtime::bind_lengths(*state_, state, lengths);
        if (!bound) return bound.error();
        if (auto checked = check_room(*state_, state, **bound); !checked) return checked;
        if (auto stored = store_sequences(*state_, state, **bound, stream); !stored) return stored;
        state.sequences->set(std::move(*bound));
        return {};
    });
}

Result<void> Kernel::update(const Plan& plan, const LengthTensors& tensors, Stream stream) const {
    return guarded([&]() -> Result<void> {
        if (auto checked = check_plan(state_.get(), plan.state_.get()); !checked) return checked;
        const detail::PlanState& state = *plan.state_;
        if (auto checked = check_has_lengths(state); !checked) return checked;
        auto lengths = state.sequences->get()->given_by(tensors);
        if (!lengths) return lengths.error();
        if (!state_->executable->reads_sequences_of_plan()) return update(plan, *lengths, stream);
        auto reading = bind_length_reading(*state_, state, *lengths);
        if (!reading) return reading.error();
        return reading->launch(*state_->executable, stream);
    });
}

std::size_t Plan::workspace_bytes() const { return state_ ? state_->workspace_bytes : 0; }
std::size_t Plan::block_mask_bytes() const { return state_ ? state_->block_mask_bytes : 0; }
const Sizes& Plan::sizes() const { return state_->sizes; }

Result<Plan> Kernel::plan(const Sizes& sizes, std::span<const NamedTensor> buffers, Stream stream,
                          const PlanOptions& options) const {
    return guarded([&]() -> Result<Plan> {
        if (!state_) return empty_handle();
        auto bound = runtime::bind_plan(*state_, sizes, buffers, options);
        if (!bound) return bound.error();
        bound->kernel = state_;
        if (auto done = plan_tiles(*state_, *bound, buffers, stream, options.block_mask_per_call);
            !done)
            return done.error();
        if (auto done = plan_sequences(*state_, *bound, stream); !done) return done.error();
        return Plan(std::make_shared<const detail::PlanState>(std::move(*bound)));
    });
}

Result<void> Kernel::forward(const Plan& plan, const ForwardTensors& tensors,
                             std::span<const NamedTensor> buffers, Workspace workspace,
                             Stream stream) const {
    return guarded([&]() -> Result<void> {
        if (auto checked = check_plan(state_.get(), plan.state_.get()); !checked) return checked;
        if (auto checked = check_workspace(*plan.state_, workspace); !checked) return checked;
        auto reading = bind_lengths_of_call(*state_, *plan.state_, tensors.lengths);
        if (!reading) return reading.error();
        runtime::BoundCall bound;
        if (auto done = runtime::bind_forward(*state_, *plan.state_, tensors, buffers, bound);
            !done)
            return done;
        if (*reading)
            if (auto done = (*reading)->launch(*state_->executable, stream); !done) return done;
        runtime::Call call = bound.view(workspace, stream);
        if (auto done = use_block_mask(*state_, *plan.state_, runtime::Pass::forward, call); !done)
            return done;
        return state_->executable->forward(call);
    });
}

Result<void> Kernel::backward(const Plan& plan, const BackwardTensors& tensors,
                              std::span<const NamedTensor> buffers,
                              std::span<const NamedTensor> buffer_gradients, Workspace workspace,
                              Stream stream) const {
    return guarded([&]() -> Result<void> {
        if (auto checked = check_plan(state_.get(), plan.state_.get()); !checked) return checked;
        if (const support::KeyLayout& keys = support::key_layout(state_->options.key_layout);
            !keys.is_in_order)
            return Error{ErrorCode::unsupported,
                         formatted("{} keys are forward only: a cache has no gradient", keys.name)};
        if (state_->options.kv_dtype)
            return Error{ErrorCode::unsupported,
                         formatted("keys and values in {} are forward only: compile for those of "
                                   "the type of q",
                                   name(*state_->options.kv_dtype))};
        if (!state_->options.backward)
            return Error{ErrorCode::invalid_option,
                         "this kernel was compiled without backward: set CompileOptions::backward"};
        if (auto checked = check_workspace(*plan.state_, workspace); !checked) return checked;
        auto reading = bind_lengths_of_call(*state_, *plan.state_, tensors.lengths);
        if (!reading) return reading.error();
        runtime::BoundCall bound;
        if (auto done = runtime::bind_backward(*state_, *plan.state_, tensors, buffers,
                                               buffer_gradients, workspace, bound);
            !done)
            return done;
        if (*reading)
            if (auto done = (*reading)->launch(*state_->executable, stream); !done) return done;
        runtime::Call call = bound.view(workspace, stream);
        if (auto done = use_block_mask(*state_, *plan.state_, runtime::Pass::backward, call); !done)
            return done;
        return state_->executable->backward(call);
    });
}

Result<bool> Kernel::out_of_range() const {
    return guarded([&]() -> Result<bool> {
        if (!state_) return empty_handle();
        if (!state_->options.report_out_of_range)
            return Error{ErrorCode::invalid_option,
                         "this kernel was compiled without reporting: set "
                         "CompileOptions::report_out_of_range"};
        return state_->executable->take_out_of_range();
    });
}

const CompileOptions& Kernel::options() const { return state_->options; }
std::span<const KernelInfo> Kernel::kernels() const { return state_->executable->kernels(); }
double Kernel::compile_ms() const { return state_->compile_ms; }
bool Kernel::from_cache() const { return state_->from_cache; }
Device Kernel::device() const { return state_->device; }

} // namespace flexc
