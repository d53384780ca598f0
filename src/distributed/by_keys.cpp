#include "distributed/by_keys.h"

#include <algorithm>
#include <vector>

#include "distributed/key_exchange.h"
#include "distributed/merged_rows.h"
#include "distributed/rows.h"
#include "distributed/sinks.h"
#include "distributed/state.h"
#include "distributed/work_tensors.h"
#include "runtime/buffers.h"

namespace flexc::distributed {

namespace {

// The workspaces and streams of launches: the stream of all other work, and one forked from it.
class Lanes {
  public:
    // is_forked: of the pass.
    static Result<Lanes> make(const DistributedPlanState& plan, bool Launch::* is_forked) {
        Lanes lanes(plan, is_forked);
        lanes.forks_ = std::ranges::any_of(plan.steps, [&](const StepPlan& step) {
            return std::ranges::any_of(step.launches, is_forked);
        });
        for (Bytes* room : {&lanes.room_, &lanes.room_beside_}) {
            if (room == &lanes.room_beside_ && !lanes.forks_) continue;
            auto memory = plan.work->tensors().allocate(plan.workspace_bytes);
            if (!memory) return memory.error();
            *room = std::move(*memory);
        }
        return lanes;
    }
    bool forks() const { return forks_; }
    Workspace workspace() const { return {room_.get(), plan_->workspace_bytes}; }
    Workspace workspace(const Launch& launch) const {
        return {(launch.*is_forked_ ? room_beside_ : room_).get(), plan_->workspace_bytes};
    }
    Stream stream(const Launch& launch) const {
        return launch.*is_forked_ ? forked_ : plan_->work->stream();
    }

    // Around the launches of a step.
    Result<void> begin(std::size_t step) {
        if (!forks_ || (plan_->steps_overlap && step > 0)) return {};
        const auto forked = plan_->work->fork();
        if (!forked) return forked.error();
        forked_ = *forked;
        return {};
    }
    Result<void> end(std::size_t step) const {
        const bool goes_on = plan_->steps_overlap && step + 1 < plan_->steps.size();
        return !forks_ || goes_on ? Result<void>{} : plan_->work->join();
    }

  private:
    Lanes(const DistributedPlanState& plan, bool Launch::* is_forked)
        : plan_(&plan), is_forked_(is_forked) {}

    const DistributedPlanState* plan_;
    bool Launch::* is_forked_;
    bool forks_ = false;
    Bytes room_, room_beside_;
    Stream forked_;
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

// f32 sums of buffers' gradients for launches of the forked stream, which run beside launches that
// add to the call's own sums.
class SumsBeside {
  public:
    static Result<SumsBeside> make(TensorWork& work, const Lanes& lanes,
                                   std::span<const NamedTensor> sums) {
        SumsBeside beside(work, sums);
        if (!lanes.forks()) return beside;
        for (NamedTensor& one : beside.own_)
            one.tensor = beside.memory_.zeros(DType::f32, runtime::shape_of(one.tensor));
        if (!beside.memory_.made()) return beside.memory_.made().error();
        return beside;
    }
    const std::vector<NamedTensor>& views() const { return own_; }
    // Adds them to the call's sums, after the launches.
    Result<void> add_to(std::span<const NamedTensor> sums) const {
        for (std::size_t i = 0; i < own_.size(); ++i)
            if (own_[i].tensor.data != sums[i].tensor.data)
                if (auto done = work_->add(own_[i].tensor, sums[i].tensor); !done) return done;
        return {};
    }

  private:
    SumsBeside(TensorWork& work, std::span<const NamedTensor> sums)
        : work_(&work), memory_(work), own_(sums.begin(), sums.end()) {}

    TensorWork* work_;
    WorkTensors memory_;
    std::vector<NamedTensor> own_;
};

KeyTensors key_tensors(const TensorView& k, const TensorView& v, const LaunchBuffers& buffers) {
    KeyTensors tensors = {k, v};
    std::ranges::copy(buffers.of_keys(), std::back_inserter(tensors));
    return tensors;
}

} // namespace

Result<void> forward_by_keys(const DistributedPlanState& plan, const ForwardTensors& tensors,
                             std::span<const NamedTensor> buffers) {
    const Kernel& kernel = plan.launch_kernel();
    auto lanes = Lanes::make(plan, &Launch::forward_forks);
    if (!lanes) return lanes.error();
    const bool has_merged = !plan.merged_rows.empty();
    const auto merged = MergedRows::make(plan.work->tensors(), plan.sizes.batch, plan.sizes.heads,
                                         has_merged ? plan.q_rows : 0, kernel.options().head_dim_v,
                                         has_merged ? plan.most_queries : 0);
    if (!merged) return merged.error();
    const auto read = LaunchBuffers::make(plan, buffers, false);
    if (!read) return read.error();

    KeyExchange keys(plan, key_tensors(tensors.k, tensors.v, *read));
    if (auto done = keys.begin(); !done) return done;
    const auto sinks = Sinks::find(plan, tensors.q, read->of_sinks(), lanes->workspace());
    if (!sinks) return sinks.error();
    const auto finish = [&](const RowRange& rows, bool with_part) {
        return merged->finish(rows, with_part, sinks->values(),
                              rows_of(tensors.o, rows.begin, rows.count()),
                              rows_of(tensors.lse, rows.begin, rows.count()));
    };
    for (std::size_t step = 0; step < plan.steps.size(); ++step) {
        const auto blocks = keys.take(step);
        if (!blocks) return blocks.error();
        if (auto done = lanes->begin(step); !done) return done;
        for (const Launch& launch : plan.steps[step].launches) {
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
                                           lanes->workspace(launch), lanes->stream(launch));
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
        if (auto done = lanes->end(step); !done) return done;
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
    auto lanes = Lanes::make(plan, &Launch::backward_forks);
    if (!lanes) return lanes.error();
    const auto read = LaunchBuffers::make(plan, buffers, false);
    if (!read) return read.error();
    KeyExchange keys(plan, key_tensors(tensors.k, tensors.v, *read));
    if (auto done = keys.begin(); !done) return done;
    WorkTensors sums(work);
    // Rows with a single launch need no sums: it writes the caller's dq.
    const bool has_sums = !plan.merged_rows.empty() || !tensors.dq;
    const TensorView dq =
        has_sums ? sums.zeros(DType::f32, {b, plan.sizes.heads, plan.q_rows, d}) : tensors.dq;
    const TensorView dk = sums.zeros(DType::f32, {b, plan.sizes.kv_heads, plan.k_rows, d}),
                     d_v = sums.zeros(DType::f32, {b, plan.sizes.kv_heads, plan.k_rows, dv});
    if (!sums.made()) return sums.made();
    const auto sums_beside = SumsBeside::make(work, *lanes, sum_views);
    if (!sums_beside) return sums_beside.error();
    const auto learnt = LaunchBuffers::make(plan, sum_views, true),
               learnt_beside = LaunchBuffers::make(plan, sums_beside->views(), true);
    for (const auto* made : {&learnt, &learnt_beside})
        if (!*made) return made->error();
    auto sinks = Sinks::find(plan, tensors.q, read->of_sinks(), lanes->workspace());
    if (!sinks) return sinks.error();
    if (auto done =
            sinks->learn(plan, tensors, read->of_sinks(), learnt->of_sinks(), lanes->workspace());
        !done)
        return done;
    const auto rows = sinks->with_sinks(tensors.lse, tensors.d_lse);
    if (!rows) return rows.error();

    GradientExchange homeward(plan, key_tensors(dk, d_v, *learnt), lanes->forks());
    // Before streams part, what both of them need.
    for (std::size_t step = 0; lanes->forks() && step < plan.steps.size(); ++step)
        if (auto done = homeward.begin(step); !done) return done;
    for (std::size_t step = 0; step < plan.steps.size(); ++step) {
        if (!lanes->forks())
            if (auto done = homeward.begin(step); !done) return done;
        const auto blocks = keys.take(step);
        if (!blocks) return blocks.error();
        if (auto done = lanes->begin(step); !done) return done;
        for (const Launch& launch : plan.steps[step].launches) {
            const Block& block = plan.steps[step].blocks[launch.block];
            const auto of_queries = [&](const TensorView& tensor) {
                return part_of(tensor, launch, plan.steps[step].heads.heads);
            };
            const KeyTensors& read_block = (*blocks)[launch.block];
            const KeyTensors& sum_block = homeward.sums(step, launch.block);
            const BackwardTensors piece{
                .q = of_queries(tensors.q),
                .k = rows_of(read_block[0], launch.k_row, launch.k_count),
                .v = rows_of(read_block[1], launch.k_row, launch.k_count),
                .o = of_queries(tensors.o),
                .lse = of_queries(rows->lse),
                .d_out = of_queries(tensors.d_out),
                .d_lse = of_queries(rows->d_lse),
                .dq = of_queries(launch.is_alone && tensors.dq ? tensors.dq : dq),
                .dk = rows_of(sum_block[0], launch.k_row, launch.k_count),
                .dv = rows_of(sum_block[1], launch.k_row, launch.k_count)};
            const LaunchBuffers& of_buffers = launch.backward_forks ? *learnt_beside : *learnt;
            if (auto done = kernel.backward(launch.plan, piece, read->of(block, read_block),
                                            of_buffers.of(block, sum_block),
                                            lanes->workspace(launch), lanes->stream(launch));
                !done)
                return done;
        }
        if (auto done = lanes->end(step); !done) return done;
        if (auto started = homeward.start(step); !started) return started;
    }
    if (auto done = homeward.finish(); !done) return done;
    if (auto done = sums_beside->add_to(sum_views); !done) return done;
    for (const RowRange& range : plan.merged_rows) {
        const auto copied = copy_wanted(work, {{rows_of(dq, range.begin, range.count()),
                                                rows_of(tensors.dq, range.begin, range.count())}});
        if (!copied) return copied;
    }
    return copy_wanted(work, {{dk, tensors.dk}, {d_v, tensors.dv}});
}

} // namespace flexc::distributed
