// From shards and a mask to launches: every rank makes the whole schedule, and keeps its own part.
#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

#include "distributed/agreement.h"
#include "distributed/make_work.h"
#include "distributed/rows.h"
#include "distributed/state.h"
#include "passes/one_sequence.h"
#include "runtime/bind.h"
#include "runtime/buffers.h"
#include "runtime/mask_values.h"
#include "support/amounts.h"
#include "support/guarded.h"
#include "support/text.h"

namespace flexc {

namespace {

using detail::DistributedPlanState;
using distributed::AgreedPart;
using distributed::Block;
using distributed::Launch;
using distributed::row_of;
using distributed::Schedule;
using distributed::Share;
using distributed::Step;
using distributed::StepPlan;
using distributed::VisibleMap;

Sizes whole_sizes(const DistributedSizes& sizes) {
    return {.batch = sizes.batch,
            .heads = sizes.heads,
            .kv_heads = sizes.kv_heads,
            .q_len = sizes.queries.length(),
            .kv_len = sizes.keys.length()};
}

Result<detail::PlanState> bind_whole(const Kernel& kernel, const Sizes& sizes,
                                     std::span<const NamedTensor> buffers,
                                     const DistributedOptions& options) {
    const detail::KernelState& state = kernel.state();
    PlanOptions plan;
    plan.scale = options.scale;
    plan.params = options.params;
    return runtime::bind_values(state.mod.program, state.options.head_dim, state.options.head_dim_v,
                                sizes, buffers, plan);
}

// By intervals alone: what these do not tell counts as visible.
Result<VisibleMap> map_of(const passes::Mod& mod, const detail::PlanState& plan,
                          distributed::RankWork& work, std::span<const NamedTensor> buffers) {
    using analysis::Dependence;
    using analysis::MaskTier;
    const ir::Program& program = mod.program;
    VisibleMap map(plan.sizes.q_len, plan.sizes.kv_len);
    if (mod.mask_tier == MaskTier::exhaustive) return map;
    std::vector<TensorView> views(program.buffers.size());
    std::vector<distributed::Bytes> copies(program.buffers.size());
    for (const ir::NodeId id : ir::reachable(program.graph, std::span(&mod.mask, 1))) {
        const ir::Node& node = program.graph[id];
        if (node.op != ir::Op::read) continue;
        const std::string& name = program.buffers[node.symbol].name;
        const auto given = std::ranges::find(buffers, name, &NamedTensor::name);
        if (given == buffers.end() || !given->tensor)
            return runtime::invalid(
                formatted("'{}': missing; the mask reads it, and decides what travels", name));
        if (views[node.symbol]) continue;
        auto view = work.on_host(given->tensor, copies[node.symbol]);
        if (!view) return view.error();
        views[node.symbol] = *view;
    }
    const Dependence reads = mod.dependence[mod.mask];
    const std::int64_t batches = reads.has(Dependence::b) ? plan.sizes.batch : 1;
    const std::int64_t heads = reads.has(Dependence::h) ? plan.sizes.heads : 1;
    const runtime::MaskValues values(program, plan.size_values, plan.param_words, views);
    for (std::int64_t b = 0; b < batches; ++b)
        for (std::int64_t h = 0; h < heads; ++h) {
            const analysis::TileClassifier tiles(program, mod.mask, values.of_head(b, h),
                                                 map.queries(), map.keys());
            map.add([&](std::int64_t q, std::int64_t kv) {
                return tiles.test(q, kv).value_or(analysis::TileClass::partial);
            });
        }
    return map;
}

// Of the sizes of a problem, of some heads of keys.
enum class Way : std::uint8_t { out, home }; // keys and values, or their gradients in f32
std::uint64_t bytes_per_key(const DistributedPlanState& plan, std::int64_t kv_heads, Way way) {
    const CompileOptions& options = plan.kernel->kernel.options();
    std::uint64_t bytes = static_cast<std::uint64_t>(plan.sizes.batch * kv_heads *
                                                     (options.head_dim + options.head_dim_v)) *
                          size_of(way == Way::out ? options.dtype : DType::f32);
    for (const distributed::Sharded& sharded : plan.sharded) {
        if (sharded.is_query || (way == Way::home && !sharded.grad)) continue;
        bytes += static_cast<std::uint64_t>(sharded.view(nullptr, DType::f32, 1).elements()) *
                 size_of(way == Way::out ? sharded.dtype : DType::f32);
    }
    return bytes;
}

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
    for (Block& block : blocks)
        if (block.parts.size() == 1 && block.parts[0].peer == rank)
            block.local_row = row_of(own, block.keys.begin);
    return blocks;
}

// Memory of tensors that a plan asks nothing of but their shapes.
alignas(16) std::byte unread[16];

class Planner {
  public:
    Planner(DistributedPlanState& plan, std::span<const NamedTensor> buffers,
            const DistributedOptions& options)
        : plan_(plan), buffers_(buffers.begin(), buffers.end()), options_(options),
          rank_(plan.communicator->rank()) {}

    Result<void> run() {
        const DistributedSizes& sizes = plan_.sizes;
        const int ranks = plan_.communicator->ranks();
        for (const auto& [name, shards] :
             {std::pair{"queries", &sizes.queries}, std::pair{"keys", &sizes.keys}})
            if (shards->ranks() != ranks)
                return runtime::invalid(
                    formatted("the {} are shards of {} ranks; the communicator has {}", name,
                              shards->ranks(), ranks));
        if (auto checked = check_nodes(); !checked) return checked;
        if (auto done = take_requests(); !done) return done;
        const Kernel& kernel = plan_.kernel->kernel;
        plan_.q_rows = sizes.queries.rows(rank_);
        plan_.k_rows = sizes.keys.rows(rank_);
        // Ranks without rows have no tensors of them.
        std::vector<NamedTensor> given;
        std::ranges::copy_if(buffers_, std::back_inserter(given), [](const NamedTensor& buffer) {
            return buffer.tensor && buffer.tensor.elements() > 0;
        });
        auto whole = bind_whole(kernel, whole_sizes(sizes), given, options_);
        if (!whole) return whole.error();
        plan_.whole = std::move(*whole);
        if (auto checked = check_longest(); !checked) return checked;
        plan_.reduction = options_.reduction;
        if (auto found = find_sharded(); !found) return found;
        auto map = map_of(kernel.state().mod, plan_.whole, *plan_.work, buffers_);
        if (!map) return map.error();
        choose_exchange(*map);
        if (plan_.exchange == Exchange::ulysses) return run_ulysses(*map);
        const Schedule schedule(sizes.queries, sizes.keys, *map, plan_.exchange);
        if (auto added = add_launches(schedule); !added) return added;
        count_area(*map);
        describe_rank();
        describe_visible(schedule);
        return {};
    }

    std::vector<AgreedPart> agreed() const {
        const DistributedSizes& sizes = plan_.sizes;
        std::string shards, params;
        for (const Shards* of : {&sizes.queries, &sizes.keys})
            for (int rank = 0; rank < of->ranks(); ++rank) {
                for (const RowRange& range : of->ranges(rank))
                    shards += formatted("{}:{} ", range.begin, range.end);
                shards += '/';
            }
        for (const std::uint64_t word : plan_.whole.param_words)
            params += formatted("{} ", word);
        return {{"a program", plan_.kernel->program},
                {"sizes", formatted("{} {} {} {} {}", sizes.batch, sizes.heads, sizes.kv_heads,
                                    sizes.queries.length(), sizes.keys.length())},
                {"shards", std::move(shards)},
                {"lengths", plan_.requests ? plan_.requests->text() : ""},
                {"a scale or params", formatted("{} {}", plan_.whole.scale, params)},
                {"an exchange or a reduction",
                 formatted("{} {} {} {}", name(plan_.exchange), options_.ranks_per_node, pieces_,
                           name(plan_.reduction))},
                {"contents of buffers that the mask reads", visible_}};
    }

  private:
    // What the ranks that share some heads do, one of each node.
    Planner(DistributedPlanState& plan, std::span<const NamedTensor> buffers,
            const DistributedOptions& options, std::string_view peers)
        : Planner(plan, buffers, options) {
        peers_ = peers;
    }

    Result<void> check_nodes() const {
        const int size = options_.ranks_per_node, ranks = plan_.communicator->ranks();
        if (size == 0) return {};
        if (options_.exchange != Exchange::ulysses)
            return runtime::invalid(formatted("ranks_per_node is for Exchange::ulysses, not {}",
                                              name(options_.exchange)));
        if (size < 0 || ranks % size != 0)
            return runtime::invalid(
                formatted("nodes of {} ranks: the communicator has {}", size, ranks));
        return {};
    }

    // Of ragged layouts: one sequence instead of the requests.
    Result<void> take_requests() {
        if (plan_.kernel->options.one_sequence == OneSequence::no) return {};
        auto read = distributed::Requests::read(whole_sizes(plan_.sizes), options_.lengths);
        if (!read) return read.error();
        plan_.requests = std::move(*read);
        if (auto placed = plan_.requests->place(*plan_.work); !placed) return placed;
        std::ranges::copy(plan_.requests->buffers(), std::back_inserter(buffers_));
        plan_.sizes.batch = 1;
        if (!plan_.requests->have_same_rows()) return {};
        CompileOptions options = plan_.kernel->options;
        options.one_sequence = OneSequence::of_same_lengths;
        auto kernel = compile_variant(options);
        if (!kernel) return kernel.error();
        plan_.kernel = std::move(*kernel);
        return {};
    }

    // What buffers have of a request.
    Result<void> check_longest() const {
        if (!plan_.requests) return {};
        const std::vector<std::string>& sizes = plan_.kernel->kernel.state().mod.program.sizes;
        for (const auto& [size, dim, longest, what] :
             {std::tuple{passes::kLongestQueries, "Q_LEN", plan_.requests->longest_queries(),
                         "queries"},
              std::tuple{passes::kLongestKeys, "KV_LEN", plan_.requests->longest_keys(), "keys"}}) {
            const auto at = std::ranges::find(sizes, size);
            if (at == sizes.end()) continue; // no buffer has such a dim
            const std::int64_t extent =
                plan_.whole.size_values[static_cast<std::size_t>(at - sizes.begin())];
            if (extent != runtime::kUnbound && extent < longest)
                return runtime::invalid(formatted("the buffers' {} is {}; a request has {} {}", dim,
                                                  extent, longest, what));
        }
        return {};
    }

    Result<void> run_ulysses(const VisibleMap& map) {
        const int ranks = plan_.communicator->ranks();
        const int size = options_.ranks_per_node == 0 ? ranks : options_.ranks_per_node;
        distributed::Ulysses& ulysses =
            plan_.ulysses.emplace(distributed::ulysses_of(plan_.sizes, plan_.communicator, size));
        if (size < ranks)
            plan_.explanation += formatted(
                "{} nodes of {} ranks: heads are swapped inside, keys travel across by ring\n",
                ranks / size, size);
        CompileOptions of_heads = plan_.kernel->options;
        of_heads.part_of_heads = true;
        auto kernel = compile_variant(of_heads);
        if (!kernel) return kernel.error();
        const Schedule schedule(ulysses.queries, ulysses.keys, map, Exchange::ring);
        for (const distributed::HeadBlock& block : ulysses.own_share().blocks) {
            auto of_block = std::make_shared<DistributedPlanState>();
            of_block->kernel = *kernel;
            of_block->communicator = ulysses.same_heads;
            of_block->work = plan_.work;
            of_block->sizes = {.batch = plan_.sizes.batch,
                               .heads = block.heads.count(),
                               .kv_heads = block.kv_heads.count(),
                               .queries = ulysses.queries,
                               .keys = ulysses.keys};
            of_block->whole = plan_.whole;
            of_block->first_head = block.heads.begin;
            of_block->q_rows = ulysses.queries.rows(ulysses.same_heads->rank());
            of_block->k_rows = ulysses.keys.rows(ulysses.same_heads->rank());
            of_block->sharded = plan_.sharded;
            for (distributed::Sharded& sharded : of_block->sharded)
                sharded.shape[sharded.dim] = sharded.is_query ? of_block->q_rows : of_block->k_rows;
            Planner planner(*of_block, buffers_, options_, "nodes");
            if (auto added = planner.add_launches(schedule); !added) return added;
            plan_.explanation += formatted("heads {} to {}:\n{}", block.heads.begin,
                                           block.heads.end, of_block->explanation);
            ulysses.blocks.push_back(std::move(of_block));
        }
        count_area(map);
        count_ulysses();
        describe_visible(schedule);
        return {};
    }

    // The program's kernels by other options.
    Result<std::shared_ptr<const detail::DistributedKernelState>>
    compile_variant(CompileOptions options) const {
        auto variant = std::make_shared<detail::DistributedKernelState>(*plan_.kernel);
        variant->options = options;
        if (variant->sink_kernel) {
            options.sink_use = SinkUse::alone;
            auto sink = compile(plan_.kernel->text, options);
            if (!sink) return sink.error();
            variant->sink_kernel = std::move(*sink);
        }
        options.sink_use = SinkUse::absent;
        auto kernel = compile(plan_.kernel->text, options);
        if (!kernel) return kernel.error();
        variant->kernel = std::move(*kernel);
        return std::shared_ptr<const detail::DistributedKernelState>(std::move(variant));
    }

    Result<void> add_launches(const Schedule& schedule) {
        plan_.schedule = schedule.of(rank_);
        if (pieces_ > 1) {
            if (auto compiled = compile_pieces(); !compiled) return compiled;
            plan_.schedule.steps.resize(static_cast<std::size_t>(pieces_),
                                        Step(plan_.schedule.steps.front()));
        }
        for (std::size_t step = 0; step < plan_.schedule.steps.size(); ++step)
            if (auto added = add_step(plan_.schedule.steps[step], heads_of_step(step)); !added)
                return added;
        if (auto added = add_sinks(); !added) return added;
        find_merged_rows();
        count_traffic(schedule);
        return {};
    }

    void choose_exchange(const VisibleMap& map) {
        plan_.exchange = options_.exchange;
        const bool is_free = plan_.exchange == Exchange::automatic;
        if (!is_free && plan_.exchange != Exchange::all_gather) {
            plan_.explanation = formatted("exchange: {}, as asked for\n", name(plan_.exchange));
            return;
        }
        const DistributedSizes& sizes = plan_.sizes;
        const Schedule gathered(sizes.queries, sizes.keys, map, Exchange::all_gather);
        std::int64_t most = 0;
        for (int rank = 0; rank < gathered.ranks(); ++rank)
            most = std::max(most, gathered.received_rows(rank));
        // The largest piece, and beside it the one that comes.
        const auto bytes_of = [&](int pieces) {
            const std::int64_t heads = (sizes.kv_heads + pieces - 1) / pieces;
            return static_cast<std::uint64_t>(most) * bytes_per_key(plan_, heads, Way::out) *
                   (pieces > 1 ? 2 : 1);
        };
        const std::uint64_t limit = options_.gathered_bytes;
        while (bytes_of(pieces_) > limit && pieces_ < sizes.kv_heads)
            ++pieces_;
        const bool fits = bytes_of(pieces_) <= limit;
        plan_.exchange = Exchange::all_gather;
        std::string reason;
        if (is_free && !fits) {
            plan_.exchange = Exchange::ring;
            reason = formatted("more than {}", limit);
        } else if (is_free && pieces_ > 1) {
            const Schedule ring(sizes.queries, sizes.keys, map, Exchange::ring);
            const std::int64_t launches = most_launches(gathered) * pieces_;
            const std::int64_t in_ring = most_launches(ring);
            if (launches > in_ring) plan_.exchange = Exchange::ring;
            reason = formatted("no more than {}, and {} launches beside {} of a ring", limit,
                               launches, in_ring);
        } else {
            reason = formatted("{} than {}", fits ? "no more" : "more", limit);
        }
        plan_.explanation = formatted(
            "exchange: {}, {}gathered keys and values take {} bytes on a rank{}, {}\n",
            name(plan_.exchange), is_free ? "because " : "as asked for; ", bytes_of(pieces_),
            pieces_ == 1 ? "" : formatted(" in {} pieces of heads", pieces_), reason);
        if (plan_.exchange == Exchange::ring) pieces_ = 1;
    }

    // Of the rank that has most.
    static std::int64_t most_launches(const Schedule& schedule) {
        std::size_t most = 0;
        for (int rank = 0; rank < schedule.ranks(); ++rank) {
            std::size_t own = 0;
            for (const Step& step : schedule.of(rank).steps)
                own += step.pieces.size();
            most = std::max(most, own);
        }
        return static_cast<std::int64_t>(most);
    }

    // Whole groups, as even as can be.
    distributed::HeadBlock heads_of_piece(int piece) const {
        const std::int64_t kv_heads = plan_.sizes.kv_heads, group = plan_.sizes.heads / kv_heads;
        const RowRange keys{kv_heads * piece / pieces_, kv_heads * (piece + 1) / pieces_};
        return {{keys.begin * group, keys.end * group}, keys};
    }
    distributed::HeadBlock heads_of_step(std::size_t step) const {
        return heads_of_piece(pieces_ == 1 ? 0 : static_cast<int>(step));
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

    Result<void> find_sharded() {
        const detail::KernelState& kernel = plan_.kernel->kernel.state();
        const ir::Program& program = kernel.mod.program;
        for (const ShardedBuffer& sharded : kernel.options.sharded) {
            const auto buffer =
                std::ranges::find(program.buffers, sharded.buffer, &ir::Buffer::name);
            const std::string size = formatted("{}.{}", sharded.buffer, sharded.dim);
            distributed::Sharded found{
                .buffer = static_cast<std::size_t>(buffer - program.buffers.begin()),
                .is_query = sharded.dim == "Q_LEN",
                .name = sharded.buffer,
                .param = size + ".shift",
                .dtype = buffer->dtype,
                .grad = buffer->grad,
                .shape = {}};
            const std::int64_t rows = found.is_query ? plan_.q_rows : plan_.k_rows;
            for (const ir::Dim& dim : buffer->dims) {
                if (!dim.is_constant() && program.sizes[dim.size] == size) {
                    found.dim = found.shape.size();
                    plan_.whole.size_values[dim.size] = rows;
                }
                const std::int64_t extent =
                    dim.is_constant() ? dim.constant : plan_.whole.size_values[dim.size];
                if (extent == runtime::kUnbound)
                    return runtime::invalid(
                        formatted("size '{}' is not known: pass the buffers to plan()",
                                  program.sizes[dim.size]));
                found.shape.push_back(extent);
            }
            plan_.sharded.push_back(std::move(found));
        }
        return {};
    }

    // Of a launch: the positions that it begins with, and their rows in buffers that are sharded
    // along Q_LEN, and in those along KV_LEN, which have k_rows there.
    struct Place {
        std::int64_t q_position = 0, q_row = 0, k_position = 0, k_row = 0, k_rows = 0;
        distributed::HeadBlock heads = {};
        bool is_alone = false; // no other launch adds to its dq
    };
    Result<Plan> plan_launch(const Kernel& kernel, const Sizes& sizes, const Place& place) {
        std::vector<ParamValue> params(options_.params.begin(), options_.params.end());
        std::vector<NamedTensor> buffers;
        for (const NamedTensor& buffer : buffers_)
            if (std::ranges::find(plan_.sharded, buffer.name, &distributed::Sharded::name) ==
                plan_.sharded.end())
                buffers.push_back(buffer);
        for (const distributed::Sharded& sharded : plan_.sharded) {
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

    Result<void> add_step(const Step& step, const distributed::HeadBlock& heads) {
        StepPlan result;
        result.heads = heads;
        result.blocks = blocks_of(step, plan_.sizes.keys.ranges(rank_), rank_);
        // Those that take longest come first: what is short fills the GPU beside their last blocks.
        std::vector<distributed::Piece> pieces = step.pieces;
        if (plan_.exchange == Exchange::all_gather)
            std::ranges::stable_sort(pieces, std::greater(), [](const distributed::Piece& piece) {
                return piece.queries.count() * piece.keys.count();
            });
        for (const distributed::Piece& piece : pieces) {
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
            // Blocks of the rank's own keys are inside its tensors.
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

    // Whether a piece has a whole range of queries that no other piece touches: its results are
    // written where they belong; others are merged.
    bool is_alone(const distributed::Piece& piece) const {
        if (plan_.kernel->sink_kernel) return false;
        const auto ranges = plan_.sizes.queries.ranges(rank_);
        const auto range = std::ranges::find_if(ranges, [&](const RowRange& one) {
            return one.begin <= piece.queries.begin && piece.queries.begin < one.end;
        });
        if (range == ranges.end() || piece.queries != *range) return false;
        // Pieces of heads are the same step, of other heads each.
        const std::size_t steps = pieces_ > 1 ? 1 : plan_.schedule.steps.size();
        std::ptrdiff_t of_range = 0;
        for (const Step& step : std::span(plan_.schedule.steps).first(steps))
            of_range += std::ranges::count_if(step.pieces, [&](const distributed::Piece& one) {
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

    void count_area(const VisibleMap& map) {
        Traffic& traffic = plan_.traffic;
        const int ranks = plan_.communicator->ranks();
        for (int rank = 0; rank < ranks; ++rank)
            for (const RowRange& range : plan_.sizes.queries.ranges(rank)) {
                const double area = map.area(range, {0, plan_.sizes.keys.length()});
                traffic.fair_area += area / ranks;
                // Of a node, where its ranks have some heads each.
                const int together = plan_.ulysses ? plan_.ulysses->ranks_per_node : 1;
                if (rank / together == rank_ / together) traffic.visible_area += area;
            }
        if (plan_.ulysses)
            traffic.visible_area *= static_cast<double>(plan_.ulysses->own_share().heads.count()) /
                                    static_cast<double>(plan_.sizes.heads);
    }

    // Rows go to those of the node that have their heads, and keys across nodes; results and
    // gradients come back in f32.
    void count_ulysses() {
        const distributed::Ulysses& ulysses = *plan_.ulysses;
        const CompileOptions& options = plan_.kernel->kernel.options();
        const auto element = static_cast<std::int64_t>(size_of(options.dtype));
        constexpr std::int64_t kFloat = sizeof(float);
        const std::int64_t d = options.head_dim, dv = options.head_dim_v;
        struct Bytes {
            std::int64_t out, back, backward_out, backward_back;
        };
        // Of the rows of one rank, for the heads of another.
        const auto between = [&](int rows_of, int heads_of) {
            const distributed::HeadShare& share =
                ulysses.shares[static_cast<std::size_t>(heads_of % ulysses.ranks_per_node)];
            const std::int64_t q =
                plan_.sizes.batch * plan_.sizes.queries.rows(rows_of) * share.heads.count();
            const std::int64_t k =
                plan_.sizes.batch * plan_.sizes.keys.rows(rows_of) * share.kv_heads.count();
            return Bytes{q * d * element + k * (d + dv) * element, q * (dv + 1) * kFloat,
                         q * (d + dv) * element + q * (dv + 2) * kFloat + k * (d + dv) * element,
                         q * d * kFloat + k * (d + dv) * kFloat};
        };
        Traffic& traffic = plan_.traffic;
        const int first = rank_ - ulysses.node->rank();
        for (int peer = first; peer < first + ulysses.ranks_per_node; ++peer) {
            if (peer == rank_) continue;
            const Bytes mine = between(rank_, peer), theirs = between(peer, rank_);
            traffic.forward_sent += static_cast<std::uint64_t>(mine.out + theirs.back);
            traffic.forward_received += static_cast<std::uint64_t>(theirs.out + mine.back);
            traffic.backward_sent +=
                static_cast<std::uint64_t>(mine.backward_out + theirs.backward_back);
            traffic.backward_received +=
                static_cast<std::uint64_t>(theirs.backward_out + mine.backward_back);
            for (const distributed::Sharded& sharded : plan_.sharded) {
                const Shards& shards = sharded.is_query ? plan_.sizes.queries : plan_.sizes.keys;
                const auto own = static_cast<std::uint64_t>(shards.rows(rank_)),
                           other = static_cast<std::uint64_t>(shards.rows(peer));
                const auto elements =
                    static_cast<std::uint64_t>(sharded.view(nullptr, DType::f32, 1).elements());
                const std::uint64_t row = elements * size_of(sharded.dtype),
                                    sums = sharded.grad ? elements * sizeof(float) : 0;
                traffic.forward_sent += own * row;
                traffic.forward_received += other * row;
                traffic.backward_sent += own * row + other * sums;
                traffic.backward_received += other * row + own * sums;
            }
        }
        for (const auto& block : ulysses.blocks) {
            traffic.forward_sent += block->traffic.forward_sent;
            traffic.forward_received += block->traffic.forward_received;
            traffic.backward_sent += block->traffic.backward_sent;
            traffic.backward_received += block->traffic.backward_received;
            traffic.pieces += block->traffic.pieces;
        }
        const RowRange& heads = ulysses.own_share().heads;
        plan_.explanation += formatted(
            "rank {}: heads {} to {} in {} launches; forward sends {} and receives {} bytes, "
            "backward {} and {}\n",
            rank_, heads.begin, heads.end, traffic.pieces, traffic.forward_sent,
            traffic.forward_received, traffic.backward_sent, traffic.backward_received);
    }

    void count_traffic(const Schedule& schedule) {
        Traffic& traffic = plan_.traffic;
        std::uint64_t narrow = 0, wide = 0;
        for (int piece = 0; piece < pieces_; ++piece) {
            const std::int64_t heads = heads_of_piece(piece).kv_heads.count();
            narrow += bytes_per_key(plan_, heads, Way::out);
            wide += bytes_per_key(plan_, heads, Way::home);
        }
        const auto sent = static_cast<std::uint64_t>(schedule.sent_rows(rank_));
        const auto received = static_cast<std::uint64_t>(schedule.received_rows(rank_));
        traffic.forward_sent = sent * narrow;
        traffic.forward_received = received * narrow;
        traffic.backward_sent = sent * narrow + received * wide;
        traffic.backward_received = received * narrow + sent * wide;
        for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
            const auto launches = plan_.steps[i].launches.size();
            traffic.pieces += static_cast<std::int64_t>(launches);
            std::int64_t keys = 0;
            std::vector<int> peers;
            for (const Share& share : plan_.schedule.steps[i].arrivals) {
                peers.push_back(share.peer);
                for (const RowRange& run : share.runs)
                    keys += run.count();
            }
            const RowRange& heads = plan_.steps[i].heads.kv_heads;
            plan_.explanation += formatted(
                "step {}: {} keys of {} [{}]{}, {} launches\n", i, keys, peers_,
                joined(peers, ", "),
                pieces_ == 1 ? "" : formatted(", heads {} to {} of them", heads.begin, heads.end),
                launches);
        }
    }

    void describe_rank() {
        const Traffic& traffic = plan_.traffic;
        plan_.explanation += formatted(
            "rank {}: {:.0f} visible elements of each head, {:.3f} of a fair share; forward sends "
            "{} and receives {} bytes, backward {} and {}\n",
            rank_, traffic.visible_area,
            traffic.fair_area == 0 ? 1.0 : traffic.visible_area / traffic.fair_area,
            traffic.forward_sent, traffic.forward_received, traffic.backward_sent,
            traffic.backward_received);
    }

    // The schedule of all ranks, as they all must have it.
    void describe_visible(const Schedule& schedule) {
        for (int rank = 0; rank < schedule.ranks(); ++rank)
            for (const Step& step : schedule.of(rank).steps)
                for (const Share& share : step.arrivals) {
                    visible_ += formatted("{} {}", rank, share.peer);
                    for (const RowRange& run : share.runs)
                        visible_ += formatted(" {}:{}", run.begin, run.end);
                    visible_ += '\n';
                }
    }

    DistributedPlanState& plan_;
    std::vector<NamedTensor> buffers_;
    const DistributedOptions& options_;
    int rank_;
    int pieces_ = 1; // of the heads of keys, that all_gather has one after another
    std::string_view peers_ = "ranks"; // that steps are between
    std::string visible_;
};

} // namespace

Result<DistributedPlan> DistributedKernel::plan(const DistributedSizes& sizes,
                                                std::shared_ptr<Communicator> communicator,
                                                std::span<const NamedTensor> buffers,
                                                const DistributedOptions& options,
                                                Stream stream) const {
    return guarded([&]() -> Result<DistributedPlan> {
        if (!state_)
            return runtime::invalid(
                "this kernel handle is empty: it did not come from compile_distributed()");
        if (communicator == nullptr) return runtime::invalid("the communicator is missing");
        auto plan = std::make_shared<DistributedPlanState>();
        plan->made_by = plan->kernel = state_;
        plan->communicator = std::move(communicator);
        plan->sizes = sizes;
        Planner planner(*plan, buffers, options);
        const Result<void> own = guarded([&]() -> Result<void> {
            auto work = distributed::make_work(*state_, plan->communicator.get());
            if (!work) return work.error();
            plan->work = std::move(*work);
            if (auto done = plan->work->begin(stream); !done) return done;
            if (auto done = planner.run(); !done) return done;
            return plan->work->end();
        });
        const auto parts = own ? planner.agreed() : std::vector<AgreedPart>{};
        if (auto agreed = distributed::agree(*plan->communicator, own, parts); !agreed)
            return agreed.error();
        return DistributedPlan(std::move(plan));
    });
}

Result<Shards> DistributedKernel::balanced_shards(const Sizes& sizes, int ranks,
                                                  std::span<const NamedTensor> buffers,
                                                  const DistributedOptions& options,
                                                  Stream stream) const {
    return guarded([&]() -> Result<Shards> {
        if (!state_)
            return runtime::invalid(
                "this kernel handle is empty: it did not come from compile_distributed()");
        if (sizes.q_len != sizes.kv_len)
            return runtime::invalid(formatted("{} queries and {} keys: balanced shards are of "
                                              "sequences that attend to themselves",
                                              sizes.q_len, sizes.kv_len));
        if (ranks < 1) return runtime::invalid(formatted("{} ranks: at least 1", ranks));
        auto work = distributed::make_work(*state_, nullptr);
        if (!work) return work.error();
        if (auto done = (*work)->begin(stream); !done) return done.error();
        Sizes whole_sizes = sizes;
        std::vector<NamedTensor> all(buffers.begin(), buffers.end());
        std::optional<distributed::Requests> requests;
        if (state_->options.one_sequence != OneSequence::no) {
            auto read = distributed::Requests::read(sizes, options.lengths);
            if (!read) return read.error();
            requests = std::move(*read);
            if (auto placed = requests->place(**work); !placed) return placed.error();
            std::ranges::copy(requests->buffers(), std::back_inserter(all));
            whole_sizes.batch = 1;
        }
        auto whole = bind_whole(state_->kernel, whole_sizes, all, options);
        if (!whole) return whole.error();
        const auto map = map_of(state_->kernel.state().mod, *whole, **work, all);
        if (!map) return map.error();
        return distributed::balanced(*map, ranks);
    });
}

const Traffic& DistributedPlan::traffic() const { return state_->traffic; }
Exchange DistributedPlan::exchange() const { return state_->exchange; }
std::string DistributedPlan::explain() const { return state_->explanation; }

} // namespace flexc
