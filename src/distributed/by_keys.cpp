#include "distributed/by_keys.h"

#include <algorithm>
#include <vector>

#include "distributed/key_exchange.h"
#include "distributed/partial_sums.h"
#include "distributed/rows.h"
#include "distributed/sinks.h"
#include "distributed/state.h"
#include "distributed/sums.h"

namespace flexc::distributed {

namespace {

Result<DeviceMemory> workspace_of(const DistributedPlanState& plan) {
    return DeviceMemory::allocate(Device::cpu(), plan.workspace_bytes);
}

// What launches read as buffers, or add to as their gradients.
class LaunchBuffers {
  public:
    // Gradients are this rank's f32 sums.
    LaunchBuffers(const DistributedPlanState& plan, std::span<const NamedTensor> own,
                  bool are_gradients)
        : own_(own.begin(), own.end()) {
        for (const Sharded& sharded : plan.sharded) {
            if (sharded.is_query || (are_gradients && !sharded.grad)) continue;
            const auto at = std::ranges::find(own_, sharded.name, &NamedTensor::name);
            of_keys_.push_back(static_cast<std::size_t>(at - own_.begin()));
            // A sink reads nothing of keys: zeros, or what nobody adds to.
            const TensorView row =
                sharded.view(nullptr, are_gradients ? DType::f32 : sharded.dtype, 1);
            zeros_.emplace_back(bytes_of(row));
            zero_rows_.push_back(row);
            zero_rows_.back().data = zeros_.back().data();
        }
    }

    // Of the rank's own rows, in the order of KeyRows.
    KeyTensors of_keys() const {
        KeyTensors tensors;
        for (const std::size_t at : of_keys_)
            tensors.push_back(own_[at].tensor);
        return tensors;
    }
    // `tensors` begins with k and v. Launches on own keys have all of the rank's rows.
    std::vector<NamedTensor> of(const Block& block, const KeyTensors& tensors) const {
        std::vector<NamedTensor> result = own_;
        if (block.local_row < 0)
            for (std::size_t i = 0; i < of_keys_.size(); ++i)
                result[of_keys_[i]].tensor = tensors[2 + i];
        return result;
    }
    std::vector<NamedTensor> of_sinks() const {
        std::vector<NamedTensor> result = own_;
        for (std::size_t i = 0; i < of_keys_.size(); ++i)
            result[of_keys_[i]].tensor = zero_rows_[i];
        return result;
    }

  private:
    std::vector<NamedTensor> own_;
    std::vector<std::size_t> of_keys_;
    std::vector<std::vector<std::byte>> zeros_;
    KeyTensors zero_rows_;
};

// A launch's queries of some heads.
TensorView part_of(const TensorView& tensor, const Launch& launch, const RowRange& heads) {
    return rows_of(rows_of(tensor, launch.q_row, launch.q_count), heads.begin, heads.count(),
                   kHeadDim);
}

KeyTensors key_tensors(const TensorView& k, const TensorView& v, const LaunchBuffers& buffers) {
    KeyTensors tensors = {k, v};
    std::ranges::copy(buffers.of_keys(), std::back_inserter(tensors));
    return tensors;
}

} // namespace

Result<void> forward_by_keys(const DistributedPlanState& plan, const ForwardTensors& tensors,
                             std::span<const NamedTensor> buffers) {
    const Kernel& kernel = plan.launch_kernel();
    const std::int64_t heads = plan.sizes.batch * plan.sizes.heads;
    const std::int64_t columns = kernel.options().head_dim_v;
    auto workspace = workspace_of(plan);
    if (!workspace) return workspace.error();
    const bool has_merged = !plan.merged_rows.empty();
    PartialSums sums(plan.sizes.batch, plan.sizes.heads, has_merged ? plan.q_rows : 0, columns);
    const auto room = static_cast<std::size_t>(has_merged ? heads * plan.most_queries : 0);
    std::vector<float> partial_o(room * static_cast<std::size_t>(columns)), partial_lse(room);

    const LaunchBuffers read(plan, buffers, false);
    KeyExchange keys(plan, key_tensors(tensors.k, tensors.v, read));
    for (std::size_t step = 0; step < plan.steps.size(); ++step) {
        const auto blocks = keys.take(step);
        if (!blocks) return blocks.error();
        for (const Launch& launch : plan.steps[step].launches) {
            const KeyTensors& block = (*blocks)[launch.block];
            const RowRange& of_heads = plan.steps[step].heads.heads;
            ForwardTensors piece{.q = part_of(tensors.q, launch, of_heads),
                                 .k = rows_of(block[0], launch.k_row, launch.k_count),
                                 .v = rows_of(block[1], launch.k_row, launch.k_count)};
            if (launch.is_alone) {
                piece.o = part_of(tensors.o, launch, of_heads);
                piece.lse = part_of(tensors.lse, launch, of_heads);
            } else {
                const std::int64_t b = plan.sizes.batch, h = of_heads.count();
                piece.o = TensorView::contiguous(partial_o.data(), DType::f32,
                                                 {b, h, launch.q_count, columns});
                piece.lse =
                    TensorView::contiguous(partial_lse.data(), DType::f32, {b, h, launch.q_count});
            }
            if (auto done = kernel.forward(launch.plan, piece,
                                           read.of(plan.steps[step].blocks[launch.block], block),
                                           {workspace->data(), workspace->bytes()});
                !done)
                return done;
            if (!launch.is_alone)
                sums.add(of_heads, {launch.q_row, launch.q_row + launch.q_count}, partial_o.data(),
                         partial_lse.data());
        }
    }
    const auto sinks =
        Sinks::find(plan, tensors.q, read.of_sinks(), {workspace->data(), workspace->bytes()});
    if (!sinks) return sinks.error();
    for (const RowRange& rows : plan.merged_rows)
        sums.finish(rows, sinks->values(), rows_of(tensors.o, rows.begin, rows.count()),
                    rows_of(tensors.lse, rows.begin, rows.count()));
    return {};
}

Result<void> backward_by_keys(const DistributedPlanState& plan, const BackwardTensors& tensors,
                              std::span<const NamedTensor> buffers,
                              std::span<const NamedTensor> sum_views) {
    const Kernel& kernel = plan.launch_kernel();
    const std::int64_t b = plan.sizes.batch;
    const std::int64_t d = kernel.options().head_dim, dv = kernel.options().head_dim_v;
    auto workspace = workspace_of(plan);
    if (!workspace) return workspace.error();
    Sums dq({b, plan.sizes.heads, plan.q_rows, d}), dk({b, plan.sizes.kv_heads, plan.k_rows, d}),
        d_v({b, plan.sizes.kv_heads, plan.k_rows, dv});
    const Workspace room{workspace->data(), workspace->bytes()};
    const LaunchBuffers read(plan, buffers, false), learnt(plan, sum_views, true);
    auto sinks = Sinks::find(plan, tensors.q, read.of_sinks(), room);
    if (!sinks) return sinks.error();
    if (auto done = sinks->learn(plan, tensors, read.of_sinks(), learnt.of_sinks(), room); !done)
        return done;
    const auto rows = sinks->with_sinks(tensors.lse, tensors.d_lse);

    KeyExchange keys(plan, key_tensors(tensors.k, tensors.v, read));
    GradientExchange homeward(plan, key_tensors(dk.view(), d_v.view(), learnt));
    for (std::size_t step = 0; step < plan.steps.size(); ++step) {
        const auto blocks = keys.take(step);
        if (!blocks) return blocks.error();
        const std::vector<KeyTensors> block_sums = homeward.begin(step);
        for (const Launch& launch : plan.steps[step].launches) {
            const Block& block = plan.steps[step].blocks[launch.block];
            const auto of_queries = [&](const TensorView& tensor) {
                return part_of(tensor, launch, plan.steps[step].heads.heads);
            };
            const auto of_keys = [&](const KeyTensors& tensors_of_block, std::size_t which) {
                return rows_of(tensors_of_block[which], launch.k_row, launch.k_count);
            };
            const KeyTensors& read_block = (*blocks)[launch.block];
            const KeyTensors& sum_block = block_sums[launch.block];
            const BackwardTensors piece{.q = of_queries(tensors.q),
                                        .k = of_keys(read_block, 0),
                                        .v = of_keys(read_block, 1),
                                        .o = of_queries(tensors.o),
                                        .lse = of_queries(rows.lse),
                                        .d_out = of_queries(tensors.d_out),
                                        .d_lse = of_queries(rows.d_lse),
                                        .dq = of_queries(dq.view()),
                                        .dk = of_keys(sum_block, 0),
                                        .dv = of_keys(sum_block, 1)};
            if (auto done = kernel.backward(launch.plan, piece, read.of(block, read_block),
                                            learnt.of(block, sum_block), room);
                !done)
                return done;
        }
        if (auto started = homeward.start(step, block_sums); !started) return started;
    }
    if (auto done = homeward.finish(); !done) return done;
    if (tensors.dq) round_to(dq.values().data(), tensors.dq);
    if (tensors.dk) round_to(dk.values().data(), tensors.dk);
    if (tensors.dv) round_to(d_v.values().data(), tensors.dv);
    return {};
}

} // namespace flexc::distributed
