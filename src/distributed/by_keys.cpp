#include "distributed/by_keys.h"

#include <algorithm>
#include <vector>

#include "distributed/key_exchange.h"
#include "distributed/merged_rows.h"
#include "distributed/rows.h"
#include "distributed/sinks.h"
#include "distributed/state.h"
#include "distributed/work_tensors.h"

namespace flexc::distributed {

namespace {

// The workspace of launches, which share it as they run one after another.
class Room {
  public:
    static Result<Room> make(const DistributedPlanState& plan) {
        auto memory = plan.work->tensors().allocate(plan.workspace_bytes);
        if (!memory) return memory.error();
        return Room(std::move(*memory), plan.workspace_bytes);
    }
    Workspace workspace() const { return {memory_.get(), bytes_}; }

  private:
    Room(Bytes memory, std::size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}
    Bytes memory_;
    std::size_t bytes_;
};

// The buffers that launches read, or the gradients to which they add.
class LaunchBuffers {
  public:
    // With are_gradients, `own` holds this rank's f32 sums.
    static Result<LaunchBuffers> make(const DistributedPlanState& plan,
                                      std::span<const NamedTensor> own, bool are_gradients) {
        LaunchBuffers buffers(own);
        for (const Sharded& sharded : plan.sharded) {
            if (sharded.is_query || (are_gradients && !sharded.grad)) continue;
            const auto at = std::ranges::find(buffers.own_, sharded.name, &NamedTensor::name);
            buffers.of_keys_.push_back(static_cast<std::size_t>(at - buffers.own_.begin()));
            // A sink reads no keys: pass zeros, or sums to which nothing is added.
            TensorView row = sharded.view(nullptr, are_gradients ? DType::f32 : sharded.dtype, 1);
            TensorWork& work = plan.work->tensors();
            const auto data = allocate(work, buffers.zeros_, bytes_of(row));
            if (!data) return data.error();
            row.data = *data;
            if (auto done = work.clear(row.data, bytes_of(row)); !done) return done.error();
            buffers.zero_rows_.push_back(row);
        }
        return buffers;
    }

    // The rank's own rows of sharded buffers, in the order of KeyRows.
    KeyTensors of_keys() const {
        KeyTensors tensors;
        for (const std::size_t at : of_keys_)
            tensors.push_back(own_[at].tensor);
        return tensors;
    }
    // Buffers of a launch on a block. `tensors` starts with k and v. Launches on the rank's own
    // keys read its own rows.
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
    explicit LaunchBuffers(std::span<const NamedTensor> own) : own_(own.begin(), own.end()) {}

    std::vector<NamedTensor> own_;
    std::vector<std::size_t> of_keys_;
    Memory zeros_;
    KeyTensors zero_rows_;
};

// The queries of a launch, for some heads.
TensorView part_of(const TensorView& tensor, const Launch& launch, const RowRange& heads) {
    return rows_of(rows_of(tensor, launch.q_row, launch.q_count), heads.begin, heads.count(),
                   kHeadDim);
}

// Whether some launches of a step are independent of the others, so that they can run in a second
// stream.
bool has_launches_beside(const DistributedPlanState& plan) {
    return std::ranges::any_of(plan.steps, [](const StepPlan& step) {
        return std::ranges::count_if(step.launches, &Launch::is_alone) > 1;
    });
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
    const auto room = Room::make(plan),
               room_beside = has_launches_beside(plan) ? Room::make(plan) : room;
    for (const auto* made : {&room, &room_beside})
        if (!*made) return made->error();
    const bool has_merged = !plan.merged_rows.empty();
    const auto merged = MergedRows::make(plan.work->tensors(), plan.sizes.batch, plan.sizes.heads,
                                         has_merged ? plan.q_rows : 0, kernel.options().head_dim_v,
                                         has_merged ? plan.most_queries : 0);
    if (!merged) return merged.error();
    const auto read = LaunchBuffers::make(plan, buffers, false);
    if (!read) return read.error();

    KeyExchange keys(plan, key_tensors(tensors.k, tensors.v, *read));
    const auto sinks = Sinks::find(plan, tensors.q, read->of_sinks(), room->workspace());
    if (!sinks) return sinks.error();
    const auto finish = [&](const RowRange& rows, bool with_part) {
        return merged->finish(rows, with_part, sinks->values(),
                              rows_of(tensors.o, rows.begin, rows.count()),
                              rows_of(tensors.lse, rows.begin, rows.count()));
    };
    for (std::size_t step = 0; step < plan.steps.size(); ++step) {
        const auto blocks = keys.take(step);
        if (!blocks) return blocks.error();
        const auto lane = plan.work->fork();
        if (!lane) return lane.error();
        int alone = 0;
        for (const Launch& launch : plan.steps[step].launches) {
            // Every second of the independent launches runs in the other stream.
            const bool is_beside = launch.is_alone && alone++ % 2 == 1;
            const KeyTensors& block = (*blocks)[launch.block];
            const RowRange rows{launch.q_row, launch.q_row + launch.q_count};
            const RowRange& of_heads = plan.steps[step].heads.heads;
            ForwardTensors piece{.q = part_of(tensors.q, launch, of_heads),
                                 .k = rows_of(block[0], launch.k_row, launch.k_count),
                                 .v = rows_of(block[1], launch.k_row, launch.k_count)};
            if (launch.is_alone) {
                piece.o = part_of(tensors.o, launch, of_heads);
                piece.lse = part_of(tensors.lse, launch, of_heads);
            } else {
                const auto part = launch.is_first ? merged->first_part(of_heads, rows)
                                                  : merged->part(of_heads, launch.q_count);
                piece.o = part.o;
                piece.lse = part.lse;
            }
            if (auto done = kernel.forward(launch.plan, piece,
                                           read->of(plan.steps[step].blocks[launch.block], block),
                                           (is_beside ? room_beside : room)->workspace(),
                                           is_beside ? *lane : plan.work->stream());
                !done)
                return done;
            if (launch.is_alone) continue;
            const auto merge = [&] {
                if (launch.is_last) return finish(rows, true);
                return launch.is_first ? merged->add_first(of_heads, rows)
                                       : merged->add(of_heads, rows);
            };
            if (auto done = merge(); !done) return done;
        }
        if (auto done = plan.work->join(); !done) return done;
    }
    for (const RowRange& rows : plan.unfinished_rows)
        if (auto done = finish(rows, false); !done) return done;
    return {};
}

Result<void> backward_by_keys(const DistributedPlanState& plan, const BackwardTensors& tensors,
                              std::span<const NamedTensor> buffers,
                              std::span<const NamedTensor> sum_views) {
    const Kernel& kernel = plan.launch_kernel();
    TensorWork& work = plan.work->tensors();
    const std::int64_t b = plan.sizes.batch;
    const std::int64_t d = kernel.options().head_dim, dv = kernel.options().head_dim_v;
    const auto room = Room::make(plan);
    if (!room) return room.error();
    WorkTensors sums(work);
    // Rows with a single launch need no sums: it writes the caller's dq.
    const bool has_sums = !plan.merged_rows.empty() || !tensors.dq;
    const TensorView dq =
        has_sums ? sums.zeros(DType::f32, {b, plan.sizes.heads, plan.q_rows, d}) : tensors.dq;
    const TensorView dk = sums.zeros(DType::f32, {b, plan.sizes.kv_heads, plan.k_rows, d}),
                     d_v = sums.zeros(DType::f32, {b, plan.sizes.kv_heads, plan.k_rows, dv});
    if (!sums.made()) return sums.made();
    const auto read = LaunchBuffers::make(plan, buffers, false),
               learnt = LaunchBuffers::make(plan, sum_views, true);
    for (const auto* made : {&read, &learnt})
        if (!*made) return made->error();
    auto sinks = Sinks::find(plan, tensors.q, read->of_sinks(), room->workspace());
    if (!sinks) return sinks.error();
    if (auto done =
            sinks->learn(plan, tensors, read->of_sinks(), learnt->of_sinks(), room->workspace());
        !done)
        return done;
    const auto rows = sinks->with_sinks(tensors.lse, tensors.d_lse);
    if (!rows) return rows.error();

    KeyExchange keys(plan, key_tensors(tensors.k, tensors.v, *read));
    GradientExchange homeward(plan, key_tensors(dk, d_v, *learnt));
    for (std::size_t step = 0; step < plan.steps.size(); ++step) {
        const auto blocks = keys.take(step);
        if (!blocks) return blocks.error();
        const auto block_sums = homeward.begin(step);
        if (!block_sums) return block_sums.error();
        for (const Launch& launch : plan.steps[step].launches) {
            const Block& block = plan.steps[step].blocks[launch.block];
            const auto of_queries = [&](const TensorView& tensor) {
                return part_of(tensor, launch, plan.steps[step].heads.heads);
            };
            const auto of_keys = [&](const KeyTensors& tensors_of_block, std::size_t which) {
                return rows_of(tensors_of_block[which], launch.k_row, launch.k_count);
            };
            const KeyTensors& read_block = (*blocks)[launch.block];
            const KeyTensors& sum_block = (*block_sums)[launch.block];
            const BackwardTensors piece{
                .q = of_queries(tensors.q),
                .k = of_keys(read_block, 0),
                .v = of_keys(read_block, 1),
                .o = of_queries(tensors.o),
                .lse = of_queries(rows->lse),
                .d_out = of_queries(tensors.d_out),
                .d_lse = of_queries(rows->d_lse),
                .dq = of_queries(launch.is_alone && tensors.dq ? tensors.dq : dq),
                .dk = of_keys(sum_block, 0),
                .dv = of_keys(sum_block, 1)};
            if (auto done = kernel.backward(launch.plan, piece, read->of(block, read_block),
                                            learnt->of(block, sum_block), room->workspace(),
                                            plan.work->stream());
                !done)
                return done;
        }
        if (auto started = homeward.start(step, *block_sums); !started) return started;
    }
    if (auto done = homeward.finish(); !done) return done;
    for (const RowRange& range : plan.merged_rows) {
        const auto copied = copy_wanted(work, {{rows_of(dq, range.begin, range.count()),
                                                rows_of(tensors.dq, range.begin, range.count())}});
        if (!copied) return copied;
    }
    return copy_wanted(work, {{dk, tensors.dk}, {d_v, tensors.dv}});
}

} // namespace flexc::distributed
