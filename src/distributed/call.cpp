// Forward and backward of one rank: what ranks must agree on first, the exchange, and sums of the
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
#include "distributed/sums.h"
#include "runtime/buffers.h"
#include "support/guarded.h"
#include "support/text.h"

namespace flexc {

namespace {

using detail::DistributedPlanState;
using distributed::GradientViews;
using distributed::Sharded;
using distributed::Sums;

Result<void> check_plan(const detail::DistributedKernelState* kernel,
                        const DistributedPlanState* plan) {
    if (kernel == nullptr)
        return runtime::invalid(
            "this kernel handle is empty: it did not come from compile_distributed()");
    if (plan == nullptr || plan->kernel.get() != kernel)
        return runtime::invalid("this plan was not made by this kernel: call plan() on it");
    return {};
}

Result<void> run_forward(const DistributedPlanState& plan, const ForwardTensors& tensors,
                         std::span<const NamedTensor> buffers) {
    return plan.ulysses ? distributed::forward_ulysses(plan, tensors, buffers)
                        : distributed::forward_by_keys(plan, tensors, buffers);
}

Result<void> run_backward(const DistributedPlanState& plan, const BackwardTensors& tensors,
                          std::span<const NamedTensor> buffers, const GradientViews& gradients) {
    const ir::Program& program = plan.kernel->kernel.state().mod.program;
    std::vector<Sums> buffer_sums;
    buffer_sums.reserve(program.buffers.size());
    std::vector<NamedTensor> sum_views;
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
        if (!program.buffers[i].grad) continue;
        const auto shape = runtime::shape_of(gradients[i]);
        buffer_sums.emplace_back(std::vector<std::int64_t>(shape.begin(), shape.end()));
        sum_views.push_back({program.buffers[i].name, buffer_sums.back().view()});
    }
    auto done = plan.ulysses ? distributed::backward_ulysses(plan, tensors, buffers, sum_views)
                             : distributed::backward_by_keys(plan, tensors, buffers, sum_views);
    if (!done) return done;

    const bool is_average = plan.reduction == GradientReduction::average;
    const float factor = is_average ? 1.0f / static_cast<float>(plan.communicator->ranks()) : 1.0f;
    std::size_t next = 0;
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
        if (!program.buffers[i].grad) continue;
        Sums& sums = buffer_sums[next++];
        // Sharded ones are whole already: each row is one rank's.
        const bool is_sharded =
            std::ranges::find(plan.sharded, i, &Sharded::buffer) != plan.sharded.end();
        if (is_sharded && is_average)
            for (float& value : sums.values())
                value *= factor;
        if (!is_sharded && plan.reduction != GradientReduction::none)
            if (auto reduced = distributed::all_reduce(*plan.communicator, sums.values(), factor);
                !reduced)
                return reduced;
        distributed::round_to(sums.values().data(), gradients[i]);
    }
    return {};
}

} // namespace

Result<void> DistributedKernel::forward(const DistributedPlan& plan, const ForwardTensors& tensors,
                                        std::span<const NamedTensor> buffers) const {
    return guarded([&]() -> Result<void> {
        if (auto checked = check_plan(state_.get(), plan.state_.get()); !checked) return checked;
        const DistributedPlanState& state = *plan.state_;
        const distributed::AgreedPart parts[] = {{"a call", "forward"}};
        const auto all = distributed::completed(state, buffers, false);
        if (auto agreed = distributed::agree(
                *state.communicator, distributed::check_forward(state, tensors, all), parts);
            !agreed)
            return agreed;
        return run_forward(state, tensors, all);
    });
}

Result<void> DistributedKernel::backward(const DistributedPlan& plan,
                                         const BackwardTensors& tensors,
                                         std::span<const NamedTensor> buffers,
                                         std::span<const NamedTensor> buffer_gradients) const {
    return guarded([&]() -> Result<void> {
        if (auto checked = check_plan(state_.get(), plan.state_.get()); !checked) return checked;
        const DistributedPlanState& state = *plan.state_;
        GradientViews gradients{};
        const distributed::AgreedPart parts[] = {{"a call", "backward"}};
        const auto all = distributed::completed(state, buffers, false);
        const auto own = distributed::check_backward(
            state, tensors, all, distributed::completed(state, buffer_gradients, true), gradients);
        if (auto agreed = distributed::agree(*state.communicator, own, parts); !agreed)
            return agreed;
        return run_backward(state, tensors, all, gradients);
    });
}

} // namespace flexc
