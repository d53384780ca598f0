#include "distributed/launches.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "distributed/rows.h"
#include "support/amounts.h"

namespace flexc::distributed {

namespace {

using detail::DistributedPlanState;

std::vector<Block> blocks_of(const Step& step, std::span<const RowRange> own, int rank) {
    std::vector<Block::Part> parts;
    for (const Share& share : step.arrivals)
        for (const RowRange& run : share.runs)
            parts.push_back({share.peer, run});
    std::ranges::sort(parts, {}, [](const Block::Part& part) { return part.run.begin; });
    std::vector<Block> blocks;
    for (const Block::Part& part : parts) {
        if (blocks.empty() || blocks.back().keys.end != part.run.begin)
            blocks.push_back({.keys = {part.run.begin, part.run.begin}, .parts = {}});
        blocks.back().keys.end = part.run.end;
        blocks.back().parts.push_back(part);
    }
    for (Block& block : blocks) {
        const std::int64_t row = row_of(own, block.keys.begin);
        if (std::ranges::all_of(block.parts, [&](const Block::Part& part) {
                return part.peer == rank &&
                       row_of(own, part.run.begin) == row + part.run.begin - block.keys.begin;
            }))
            block.local_row = row;
    }
    return blocks;
}

// The address of tensors of which a plan only reads the shapes.
alignas(16) std::byte unread[16];

class LaunchPlanner {
  public:
    LaunchPlanner(DistributedPlanState& plan, std::span<const NamedTensor> buffers,
                  const DistributedOptions& options, int pieces)
        : plan_(plan), buffers_(buffers), options_(options), rank_(plan.communicator->rank()),
          pieces_(pieces) {}

    Result<void> run(const Schedule& schedule) {
        plan_.schedule = schedule.of(rank_);
        if (pieces_ > 1) {
            if (auto compiled = compile_pieces(); !compiled) return compiled;
            const std::vector<Step> of_piece = plan_.schedule.steps;
            for (int piece = 1; piece < pieces_; ++piece)
                std::ranges::copy(of_piece, std::back_inserter(plan_.schedule.steps));
        }
        for (std::size_t step = 0; step < plan_.schedule.steps.size(); ++step)
            if (auto added = add_step(plan_.schedule.steps[step], heads_of_step(step)); !added)
                return added;
        if (auto added = add_sinks(); !added) return added;
        find_merged_rows();
        fork_launches();
        return {};
    }

  private:
    // The heads of a piece: whole groups, divided as evenly as possible.
    HeadBlock heads_of_piece(int piece) const {
        const std::int64_t kv_heads = plan_.sizes.kv_heads, group = plan_.sizes.heads / kv_heads;
        const RowRange keys{kv_heads * piece / pieces_, kv_heads * (piece + 1) / pieces_};
        return {{keys.begin * group, keys.end * group}, keys};
    }
    std::size_t steps_of_piece() const {
        return plan_.schedule.steps.size() / static_cast<std::size_t>(pieces_);
    }
    HeadBlock heads_of_step(std::size_t step) const {
        return heads_of_piece(static_cast<int>(step / steps_of_piece()));
    }

    Result<void> compile_pieces() {
        CompileOptions options = plan_.kernel->options;
        options.part_of_heads = true;
        options.sink_use = SinkUse::absent;
        auto kernel = compile(plan_.kernel->text, options);
        if (!kernel) return kernel.error();
        plan_.piece_kernel = std::move(*kernel);
        return {};
    }

    // Where a launch starts: its first positions, and their rows in buffers that are sharded along
    // Q_LEN and along KV_LEN, which have k_rows rows there.
    struct Place {
        std::int64_t q_position = 0, q_row = 0, k_position = 0, k_row = 0, k_rows = 0;
        HeadBlock heads = {};
        bool is_alone = false; // no other launch adds to its dq
    };
    Result<Plan> plan_launch(const Kernel& kernel, const Sizes& sizes, const Place& place) {
        std::vector<ParamValue> params(options_.params.begin(), options_.params.end());
        std::vector<NamedTensor> buffers;
        for (const NamedTensor& buffer : buffers_)
            if (std::ranges::find(plan_.sharded, buffer.name, &Sharded::name) ==
                plan_.sharded.end())
                buffers.push_back(buffer);
        for (const Sharded& sharded : plan_.sharded) {
            const std::int64_t shift =
                sharded.is_query ? place.q_row - place.q_position : place.k_row - place.k_position;
            params.push_back({sharded.param, static_cast<double>(shift)});
            buffers.push_back(
                {sharded.name, sharded.view(unread, sharded.dtype,
                                            sharded.is_query ? plan_.q_rows : place.k_rows)});
        }
        PlanOptions options;
        options.scale = options_.scale;
        options.params = params;
        options.q_offset = place.q_position;
        options.kv_offset = place.k_position;
        options.global_q_len = plan_.sizes.queries.length();
        options.global_kv_len = plan_.sizes.keys.length();
        if (kernel.options().part_of_heads) {
            options.head_offset = plan_.first_head + place.heads.heads.begin;
            options.global_heads = plan_.whole.sizes.heads;
            options.global_kv_heads = plan_.whole.sizes.kv_heads;
        }
        options.cpu_threads = options_.cpu_threads;
        options.accumulate_gradients = kernel.options().backward;
        options.replace_dq = place.is_alone;
        auto made = kernel.plan(sizes, buffers, plan_.work->stream(), options);
        if (made) plan_.workspace_bytes = std::max(plan_.workspace_bytes, made->workspace_bytes());
        return made;
    }

    Result<void> add_step(const Step& step, const HeadBlock& heads) {
        StepPlan result;
        result.heads = heads;
        result.blocks = blocks_of(step, plan_.sizes.keys.ranges(rank_), rank_);
        // The longest first: short launches then fill the GPU beside the last blocks of these.
        std::vector<Piece> pieces = step.pieces;
        if (plan_.exchange == Exchange::all_gather)
            std::ranges::stable_sort(pieces, std::greater(), [](const Piece& piece) {
                return piece.queries.count() * piece.keys.count();
            });
        for (const Piece& piece : pieces) {
            const auto block = std::ranges::find_if(result.blocks, [&](const Block& one) {
                return one.keys.begin <= piece.keys.begin && piece.keys.end <= one.keys.end;
            });
            Sizes sizes = plan_.whole.sizes;
            sizes.q_len = piece.queries.count();
            sizes.kv_len = piece.keys.count();
            sizes.heads = heads.heads.count();
            sizes.kv_heads = heads.kv_heads.count();
            const std::int64_t q_row =
                row_of(plan_.sizes.queries.ranges(rank_), piece.queries.begin);
            const std::int64_t k_row = piece.keys.begin - block->keys.begin;
            const bool alone = is_alone(piece);
            // Blocks of the rank's own keys are views of its tensors.
            const bool is_local = block->local_row >= 0;
            auto made = plan_launch(plan_.launch_kernel(), sizes,
                                    {.q_position = piece.queries.begin,
                                     .q_row = q_row,
                                     .k_position = piece.keys.begin,
                                     .k_row = is_local ? block->local_row + k_row : k_row,
                                     .k_rows = is_local ? plan_.k_rows : block->keys.count(),
                                     .heads = heads,
                                     .is_alone = alone});
            if (!made) return made.error();
            plan_.most_queries = std::max(plan_.most_queries, sizes.q_len);
            result.launches.push_back(
                {.plan = std::move(*made),
                 .q_row = q_row,
                 .q_count = piece.queries.count(),
                 .block = static_cast<std::size_t>(block - result.blocks.begin()),
                 .k_row = k_row,
                 .k_count = piece.keys.count(),
                 .is_alone = alone});
        }
        plan_.steps.push_back(std::move(result));
        return {};
    }

    Result<void> add_sinks() {
        if (!plan_.kernel->sink_kernel) return {};
        std::int64_t row = 0;
        for (const RowRange& range : plan_.sizes.queries.ranges(rank_)) {
            Sizes sizes = plan_.whole.sizes;
            sizes.heads = plan_.sizes.heads;
            sizes.kv_heads = plan_.sizes.kv_heads;
            sizes.q_len = range.count();
            sizes.kv_len = 1;
            auto made = plan_launch(*plan_.kernel->sink_kernel, sizes,
                                    {.q_position = range.begin, .q_row = row, .k_rows = 1});
            if (!made) return made.error();
            plan_.sinks.push_back({std::move(*made), {row, row + range.count()}});
            row += range.count();
        }
        return {};
    }

    // Whether a piece covers a whole range of queries that no other piece touches: its results are
    // written directly; others are merged.
    bool is_alone(const Piece& piece) const {
        if (plan_.kernel->sink_kernel) return false;
        const auto ranges = plan_.sizes.queries.ranges(rank_);
        const auto range = std::ranges::find_if(ranges, [&](const RowRange& one) {
            return one.begin <= piece.queries.begin && piece.queries.begin < one.end;
        });
        if (range == ranges.end() || piece.queries != *range) return false;
        // Pieces of heads repeat the same steps for other heads.
        std::ptrdiff_t of_range = 0;
        for (const Step& step : std::span(plan_.schedule.steps).first(steps_of_piece()))
            of_range += std::ranges::count_if(step.pieces, [&](const Piece& one) {
                return range->begin <= one.queries.begin && one.queries.begin < range->end;
            });
        return of_range == 1;
    }

    void find_merged_rows() {
        std::int64_t row = 0;
        for (const RowRange& range : plan_.sizes.queries.ranges(rank_)) {
            const RowRange rows{row, row + range.count()};
            row = rows.end;
            std::vector<Launch*> of_range;
            for (StepPlan& step : plan_.steps)
                for (Launch& launch : step.launches)
                    if (launch.q_row >= rows.begin && launch.q_row < rows.end)
                        of_range.push_back(&launch);
            if (!of_range.empty() && of_range.front()->is_alone) continue;
            plan_.merged_rows.push_back(rows);
            for (auto at = of_range.begin(); at != of_range.end(); ++at)
                (*at)->is_first =
                    pieces_ == 1 && std::none_of(of_range.begin(), at, [&](const Launch* earlier) {
                        return earlier->q_row < (*at)->q_row + (*at)->q_count &&
                               (*at)->q_row < earlier->q_row + earlier->q_count;
                    });
            Launch* const last = of_range.empty() ? nullptr : of_range.back();
            if (last != nullptr && pieces_ == 1 && !last->is_first)
                last->is_last = last->q_count == rows.count();
            if (last == nullptr || !last->is_last) plan_.unfinished_rows.push_back(rows);
        }
    }

    // Forward, every other one of a step's launches that need nothing of each other, first those
    // that wait for keys. Backward, where launches add to the same gradients, all that wait: those
    // that do not fill the GPU before and after.
    void fork_launches() {
        plan_.steps_overlap = plan_.exchange == Exchange::all_gather && pieces_ == 1 &&
                              plan_.steps.size() == kStepsOfGather &&
                              std::ranges::all_of(plan_.sharded, &Sharded::is_query);
        for (StepPlan& step : plan_.steps) {
            const bool waits = plan_.steps_overlap && &step == &plan_.steps.back();
            int alone = waits ? 1 : 0;
            for (Launch& launch : step.launches)
                launch.forward_forks = launch.is_alone && alone++ % 2 == 1;
        }
        if (!plan_.steps_overlap || !has_small_sums() || plan_.steps.front().launches.empty())
            return;
        StepPlan& waiting = plan_.steps.back();
        const bool has_own_sums = std::ranges::all_of(
            waiting.blocks, [](const Block& block) { return block.local_row < 0; });
        for (Launch& launch : waiting.launches)
            launch.backward_forks = has_own_sums;
    }

    // Launches of the forked stream have sums of buffers' gradients of their own.
    bool has_small_sums() const {
        constexpr std::size_t kMostBytes = std::size_t{16} << 20;
        std::size_t bytes = 0;
        for (const ir::Buffer& buffer : plan_.kernel->kernel.state().mod.program.buffers) {
            if (!buffer.grad) continue;
            std::size_t of_buffer = sizeof(float);
            for (const ir::Dim& dim : buffer.dims)
                of_buffer = support::product(of_buffer, plan_.whole.extent(dim));
            bytes = support::plus(bytes, of_buffer);
        }
        return bytes <= kMostBytes;
    }

    DistributedPlanState& plan_;
    std::span<const NamedTensor> buffers_;
    const DistributedOptions& options_;
    int rank_, pieces_;
};

} // namespace

Result<void> plan_launches(DistributedPlanState& plan, const Schedule& schedule,
                           std::span<const NamedTensor> buffers, const DistributedOptions& options,
                           int pieces) {
    return LaunchPlanner(plan, buffers, options, pieces).run(schedule);
}

} // namespace flexc::distributed
