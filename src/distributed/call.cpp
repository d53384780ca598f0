// Forward and backward of one rank: agreement of the ranks, the exchange of keys, and sums of the
// gradients of buffers over ranks.
#include <algorithm>
#include <iterator>
#include <utility>

#include "distributed/agreement.h"
#include "distributed/by_keys.h"
#include "distributed/check_call.h"
#include "distributed/collectives.h"
#include "distributed/rows.h"
#include "distributed/state.h"
#include "distributed/work_tensors.h"
#include "runtime/buffers.h"
#include "support/guarded.h"
#include "support/text.h"

namespace flexc {

namespace {

using detail::DistributedPlanState;
using distributed::GradientViews;
using distributed::Sharded;
using distributed::WorkTensors;

Result<void> check_plan(const detail::DistributedKernelState* kernel,
                        const DistributedPlanState* plan) {
    if (kernel == nullptr)
        return runtime::invalid(
            "this kernel handle is empty: it did not come from compile_distributed()");
    if (plan == nullptr || plan->made_by.get() != kernel)
        return runtime::invalid("this plan was not made by this kernel: call plan() on it");
    return {};
}

Result<void> run_forward(const DistributedPlanState& plan, const ForwardTensors& tensors,
                         std::span<const NamedTensor> buffers) {
    const ForwardTensors own = plan.requests ? distributed::as_one_sequence(tensors) : tensors;
    return plan.ulysses ? distributed::forward_ulysses(plan, own, buffers)
                        : distributed::forward_by_keys(plan, own, buffers);
}

Result<void> run_backward(const DistributedPlanState& plan, const BackwardTensors& tensors,
                          std::span<const NamedTensor> buffers, const GradientViews& gradients) {
    const ir::Program& program = plan.kernel->kernel.state().mod.program;
    distributed::TensorWork& work = plan.work->tensors();
    const auto memory = std::make_shared<WorkTensors>(work);
    std::vector<NamedTensor> sums;
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
        if (!program.buffers[i].grad) continue;
        sums.push_back(
            {program.buffers[i].name, memory->zeros(DType::f32, runtime::shape_of(gradients[i]))});
    }
    if (!memory->made()) return memory->made();
    const BackwardTensors own = plan.requests ? distributed::as_one_sequence(tensors) : tensors;
    if (auto done = plan.ulysses ? distributed::backward_ulysses(plan, own, buffers, sums)
                                 : distributed::backward_by_keys(plan, own, buffers, sums);
        !done)
        return done;

    const bool is_average = plan.reduction == GradientReduction::average;
    const float factor = is_average ? 1.0f / static_cast<float>(plan.communicator->ranks()) : 1.0f;
    std::size_t next = 0;
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
        if (!program.buffers[i].grad) continue;
        const TensorView& sum = sums[next++].tensor;
        // Gradients of sharded buffers are complete already, as each row belongs to one rank.
        const bool is_sharded =
            std::ranges::find(plan.sharded, i, &Sharded::buffer) != plan.sharded.end();
        if (is_sharded && is_average) {
            auto* const values = static_cast<float*>(sum.data);
            if (auto done = work.sum({.parts = values,
                                      .to = values,
                                      .count = sum.elements(),
                                      .ranks = 1,
                                      .factor = factor});
                !done)
                return done;
        }
        if (!is_sharded && plan.reduction != GradientReduction::none)
            if (auto reduced =
                    distributed::all_reduce(*plan.work, *plan.communicator, sum, memory, factor);
                !reduced)
                return reduced;
        if (auto done = work.copy(sum, gradients[i]); !done) return done;
    }
    return {};
}

// Runs a call if the checks (`own`) succeed on all ranks, after the stream's earlier work and the
// plan's earlier calls. has_agreed: the ranks have agreed on a call of this kind before.
template <typename Run>
Result<void> call_together(const DistributedPlanState& plan, const char* kind, bool& has_agreed,
                           const Result<void>& own, Stream stream, Run run) {
    Communicator& communicator = *plan.communicator;
    const distributed::AgreedPart parts[] = {{"a call", kind}, {"a plan", plan.agreed}};
    auto agreement = distributed::Agreement::start(communicator, own, parts);
    const bool is_ahead = has_agreed && communicator.runs_ahead();
    const auto agree = [&] {
        auto agreed = agreement.finish();
        has_agreed = agreed.has_value();
        // Other ranks may have started work that this one will not join.
        if (!agreed && is_ahead) communicator.abandon();
        return agreed;
    };
    if (!own || !is_ahead)
        if (auto agreed = agree(); !agreed) return agreed;
    if (auto done = plan.work->begin(stream); !done) return done;
    auto done = guarded([&] { return run(); });
    if (is_ahead)
        if (auto agreed = agree(); !agreed) done = agreed;
    if (done) done = plan.work->finish(communicator);
    const auto ended = plan.work->end();
    return done ? ended : done;
}

} // namespace

Result<void> DistributedKernel::forward(const DistributedPlan& plan, const ForwardTensors& tensors,
                                        std::span<const NamedTensor> buffers, Stream stream) const {
    return guarded([&]() -> Result<void> {
        if (auto checked = check_plan(state_.get(), plan.state_.get()); !checked) return checked;
        const DistributedPlanState& state = *plan.state_;
        const auto all = distributed::completed(state, buffers, false);
        return call_together(state, "forward", state.calls->forward,
                             distributed::check_forward(state, tensors, all), stream,
                             [&] { return run_forward(state, tensors, all); });
    });
}

Result<void> DistributedKernel::backward(const DistributedPlan& plan,
                                         const BackwardTensors& tensors,
                                         std::span<const NamedTensor> buffers,
                                         std::span<const NamedTensor> buffer_gradients,
                                         Stream stream) const {
    return guarded([&]() -> Result<void> {
        if (auto checked = check_plan(state_.get(), plan.state_.get()); !checked) return checked;
        const DistributedPlanState& state = *plan.state_;
        GradientViews gradients{};
        const auto all = distributed::completed(state, buffers, false);
        const auto own = distributed::check_backward(
            state, tensors, all, distributed::completed(state, buffer_gradients, true), gradients);
        return call_together(state, "backward", state.calls->backward, own, stream,
                             [&] { return run_backward(state, tensors, all, gradients); });
    });
}

} // namespace flexc
