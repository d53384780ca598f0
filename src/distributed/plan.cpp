// Makes a plan from shards and a mask: every rank computes the whole schedule, and keeps its own
// part.
#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "cache/digest.h"
#include "distributed/agreement.h"
#include "distributed/exchange_choice.h"
#include "distributed/launches.h"
#include "distributed/make_work.h"
#include "distributed/mask_map.h"
#include "distributed/state.h"
#include "distributed/traffic.h"
#include "passes/one_sequence.h"
#include "runtime/buffers.h"
#include "support/guarded.h"
#include "support/text.h"

namespace flexc {

namespace {

using detail::DistributedPlanState;
using distributed::AgreedPart;
using distributed::Schedule;
using distributed::Share;
using distributed::Step;
using distributed::VisibleMap;

Sizes whole_sizes(const DistributedSizes& sizes) {
    return {.batch = sizes.batch,
            .heads = sizes.heads,
            .kv_heads = sizes.kv_heads,
            .q_len = sizes.queries.length(),
            .kv_len = sizes.keys.length()};
}

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
        // Ranks without rows have no such tensors.
        std::vector<NamedTensor> given;
        std::ranges::copy_if(buffers_, std::back_inserter(given), [](const NamedTensor& buffer) {
            return buffer.tensor && buffer.tensor.elements() > 0;
        });
        auto whole = distributed::bind_whole(kernel, whole_sizes(sizes), given, options_);
        if (!whole) return whole.error();
        plan_.whole = std::move(*whole);
        if (auto checked = check_longest(); !checked) return checked;
        plan_.reduction = options_.reduction;
        if (auto found = find_sharded(); !found) return found;
        auto map = distributed::mask_map(kernel.state().mod, plan_.whole, *plan_.work, buffers_);
        if (!map) return map.error();
        const auto choice = distributed::choose_exchange(plan_, *map, options_);
        plan_.exchange = choice.exchange;
        plan_.explanation = choice.explanation;
        pieces_ = choice.pieces;
        if (plan_.exchange == Exchange::ulysses) return run_ulysses(*map);
        const Schedule schedule(sizes.queries, sizes.keys, *map, plan_.exchange);
        if (auto planned = distributed::plan_launches(plan_, schedule, buffers_, options_, pieces_);
            !planned)
            return planned;
        distributed::count_steps(plan_, schedule, "ranks");
        distributed::count_area(plan_, *map);
        distributed::describe_rank(plan_);
        describe_shards(*map);
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

    // For ragged layouts: replaces the requests by one sequence.
    Result<void> take_requests() {
        if (plan_.kernel->options.one_sequence == OneSequence::no) {
            if (options_.lengths.cu_seqlens_q.empty() && options_.lengths.cu_seqlens_k.empty())
                return {};
            return runtime::invalid("lengths are of ragged layouts: compile for these");
        }
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

    // Checks the dims of buffers that are the longest request's lengths.
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
            if (auto planned =
                    distributed::plan_launches(*of_block, schedule, buffers_, options_, 1);
                !planned)
                return planned;
            distributed::count_steps(*of_block, schedule, "nodes");
            plan_.explanation += formatted("heads {} to {}:\n{}", block.heads.begin,
                                           block.heads.end, of_block->explanation);
            ulysses.blocks.push_back(std::move(of_block));
        }
        distributed::count_area(plan_, map);
        distributed::count_ulysses(plan_);
        describe_visible(schedule);
        return {};
    }

    // Compiles the program with other options.
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
                const std::int64_t extent = plan_.whole.extent(dim);
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

    // Names how the rows of queries are dealt.
    void describe_shards(const VisibleMap& map) {
        const Shards& queries = plan_.sizes.queries;
        const int ranks = queries.ranks();
        const auto are = [&](const Shards& others) {
            for (int rank = 0; rank < ranks; ++rank)
                if (!std::ranges::equal(queries.ranges(rank), others.ranges(rank))) return false;
            return true;
        };
        const char* dealt = "as given";
        if (are(*Shards::contiguous(queries.length(), ranks)))
            dealt = "contiguous";
        else if (are(*Shards::zigzag(queries.length(), ranks)))
            dealt = "zigzag";
        else if (queries.length() == plan_.sizes.keys.length() &&
                 are(distributed::balanced(map, ranks)))
            dealt = "balanced by what the mask shows";
        plan_.explanation += formatted("shards: {}\n", dealt);
    }

    // Describes the schedule of all ranks, which must be the same on each.
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
        std::string all;
        for (const AgreedPart& part : parts)
            all += formatted("{}: {}\n", part.name, part.text);
        plan->agreed = cache::digest_of(all).hex();
        return DistributedPlan(std::move(plan));
    });
}

const Traffic& DistributedPlan::traffic() const { return state_->traffic; }
Exchange DistributedPlan::exchange() const { return state_->exchange; }
std::string DistributedPlan::explain() const { return state_->explanation; }

} // namespace flexc
