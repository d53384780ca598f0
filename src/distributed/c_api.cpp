// The C ABI of attention across ranks.
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/c_call.h"
#include "api/c_convert.h"
#include "distributed/agreement.h"
#include "distributed/state.h"
#include "flexc/distributed.h"
#include "flexc/flexc_distributed_c.h"

struct flexc_shards {
    flexc::Shards shards;
};

struct flexc_communicator {
    std::shared_ptr<flexc::Communicator> communicator;
};

struct flexc_distributed_kernel {
    flexc::DistributedKernel kernel;
};

struct flexc_distributed_plan {
    flexc::DistributedPlan plan;
};

namespace {

using flexc::Error;
using flexc::Result;
using flexc::api::call;
using flexc::api::CompileCall;
using flexc::api::fill_struct;
using flexc::api::invalid;
using flexc::api::read_element;
using flexc::api::read_enum;
using flexc::api::read_struct;
using flexc::api::read_tensors;

// Hands the shards to the caller as an object, or returns the error.
Result<void> hand_out(Result<flexc::Shards> made, flexc_shards** shards) {
    if (!made) return made.error();
    *shards = new flexc_shards{std::move(*made)};
    return {};
}

template <typename Make>
flexc_status make_shards(flexc_shards** shards, flexc_error** error, Make make) {
    return call(error, [&]() -> Result<void> {
        if (shards == nullptr) return invalid("shards is NULL");
        *shards = nullptr;
        return hand_out(make(), shards);
    });
}

bool has_rank(const flexc_shards* shards, std::int32_t rank) {
    return shards != nullptr && rank >= 0 && rank < shards->shards.ranks();
}

Result<flexc::CommunicatorOptions> read_options(const flexc_communicator_options* given) {
    flexc::CommunicatorOptions options;
    if (given == nullptr) return options;
    const auto read = read_struct(given, "options");
    if (!read) return read.error();
    if (!(read->timeout_seconds >= 0)) return invalid("timeout_seconds is negative, or NaN");
    if (read->timeout_seconds != 0) options.timeout_seconds = read->timeout_seconds;
    return options;
}

using Opened = Result<std::shared_ptr<flexc::Communicator>>;

template <typename Open>
flexc_status open_communicator(const flexc_communicator_options* options,
                               flexc_communicator** communicator, flexc_error** error, Open open) {
    return call(error, [&]() -> Result<void> {
        if (communicator == nullptr) return invalid("communicator is NULL");
        *communicator = nullptr;
        const auto read = read_options(options);
        if (!read) return read.error();
        Opened opened = open(*read);
        if (!opened) return opened.error();
        *communicator = new flexc_communicator{std::move(*opened)};
        return {};
    });
}

// The options, and the storage that they point into.
struct ReadOptions {
    std::vector<flexc::ParamValue> params;
    flexc::DistributedOptions options;
};
Result<ReadOptions> read_options(const flexc_distributed_options* given) {
    ReadOptions result;
    if (given == nullptr) return result;
    const auto read = read_struct(given, "options");
    if (!read) return read.error();
    auto params = flexc::api::read_params(read->params, read->param_count);
    if (!params) return params.error();
    const auto exchange =
        read_enum<flexc::Exchange>(read->exchange, FLEXC_EXCHANGE_ULYSSES, "exchange");
    if (!exchange) return exchange.error();
    constexpr flexc::GradientReduction kReductions[] = {flexc::GradientReduction::sum,
                                                        flexc::GradientReduction::average,
                                                        flexc::GradientReduction::none};
    const auto reduction =
        read_enum<std::int32_t>(read->reduction, FLEXC_REDUCTION_NONE, "reduction");
    if (!reduction) return reduction.error();
    result.params = std::move(*params);
    flexc::DistributedOptions& options = result.options;
    if (read->has_scale != 0) options.scale = read->scale;
    options.params = result.params; // the vector's memory moves with it
    options.exchange = *exchange;
    options.reduction = kReductions[*reduction];
    if (read->gathered_bytes != 0) options.gathered_bytes = read->gathered_bytes;
    options.ranks_per_node = read->ranks_per_node;
    if (read->lengths != nullptr) {
        const auto lengths = flexc::api::read_lengths(read->lengths);
        if (!lengths) return lengths.error();
        options.lengths = *lengths;
    }
    options.cpu_threads = {read->cpu_threads, read->parallel_for, read->parallel_user};
    return result;
}

Result<flexc::DistributedSizes> read_sizes(const flexc_distributed_sizes* given) {
    const auto read = read_struct(given, "sizes");
    if (!read) return read.error();
    if (read->queries == nullptr) return invalid("sizes.queries is NULL");
    if (read->keys == nullptr) return invalid("sizes.keys is NULL");
    return flexc::DistributedSizes{.batch = read->batch,
                                   .heads = read->heads,
                                   .kv_heads = read->kv_heads,
                                   .queries = read->queries->shards,
                                   .keys = read->keys->shards};
}

// Called if arguments cannot be read: the other ranks have made this call too, and must be told.
Error refused(flexc::Communicator& communicator, const Error& error) {
    return flexc::distributed::agree(communicator, error, {}).error();
}

// A plan has its own lengths, of all ranks.
template <typename Tensors> Result<void> check_lengths(const Tensors* tensors) {
    const auto read = read_struct(tensors, "tensors");
    if (!read) return read.error();
    if (read->lengths == nullptr) return {};
    return invalid("tensors.lengths: across ranks, lengths are given to the plan");
}
Result<void> check_handles(const flexc_distributed_kernel* kernel,
                           const flexc_distributed_plan* plan) {
    if (kernel == nullptr) return invalid("kernel is NULL");
    if (plan == nullptr) return invalid("plan is NULL");
    return {};
}

} // namespace

flexc_status flexc_shards_contiguous(int64_t length, int32_t ranks, flexc_shards** shards,
                                     flexc_error** error) {
    return make_shards(shards, error, [&] { return flexc::Shards::contiguous(length, ranks); });
}
flexc_status flexc_shards_zigzag(int64_t length, int32_t ranks, flexc_shards** shards,
                                 flexc_error** error) {
    return make_shards(shards, error, [&] { return flexc::Shards::zigzag(length, ranks); });
}
flexc_status flexc_shards_striped(int64_t length, int32_t ranks, int64_t rows,
                                  flexc_shards** shards, flexc_error** error) {
    return make_shards(shards, error, [&] { return flexc::Shards::striped(length, ranks, rows); });
}

flexc_status flexc_shards_of(int64_t length, int32_t ranks, const flexc_rank_range* ranges,
                             size_t range_count, flexc_shards** shards, flexc_error** error) {
    return make_shards(shards, error, [&]() -> Result<flexc::Shards> {
        if (ranks < 1 || ranks > flexc::kMaxRanks)
            return flexc::Shards::contiguous(length, ranks).error();
        std::vector<std::vector<flexc::RowRange>> of_ranks(static_cast<std::size_t>(ranks));
        for (std::size_t i = 0; i < range_count; ++i) {
            const auto range = read_element(ranges, i, "ranges");
            if (!range) return range.error();
            if (range->rank < 0 || range->rank >= ranks)
                return invalid("range " + std::to_string(i) + " is of rank " +
                               std::to_string(range->rank) + "; there are " +
                               std::to_string(ranks) + " ranks");
            of_ranks[static_cast<std::size_t>(range->rank)].push_back({range->begin, range->end});
        }
        return flexc::Shards::of(length, std::move(of_ranks));
    });
}

flexc_status flexc_shards_balanced(const flexc_distributed_kernel* kernel, const flexc_sizes* sizes,
                                   int32_t ranks, const flexc_named_tensor* buffers,
                                   size_t buffer_count, void* stream,
                                   const flexc_distributed_options* options, flexc_shards** shards,
                                   flexc_error** error) {
    return make_shards(shards, error, [&]() -> Result<flexc::Shards> {
        if (kernel == nullptr) return invalid("kernel is NULL");
        const auto read = flexc::api::read_sizes(sizes);
        if (!read) return read.error();
        const auto tensors = read_tensors(buffers, buffer_count);
        if (!tensors) return tensors.error();
        const auto given = read_options(options);
        if (!given) return given.error();
        return kernel->kernel.balanced_shards(*read, ranks, *tensors, given->options, {stream});
    });
}

void flexc_shards_free(flexc_shards* shards) { delete shards; }
int64_t flexc_shards_length(const flexc_shards* shards) {
    return shards == nullptr ? 0 : shards->shards.length();
}
int32_t flexc_shards_ranks(const flexc_shards* shards) {
    return shards == nullptr ? 0 : shards->shards.ranks();
}
int64_t flexc_shards_rows(const flexc_shards* shards, int32_t rank) {
    return has_rank(shards, rank) ? shards->shards.rows(rank) : 0;
}
size_t flexc_shards_range_count(const flexc_shards* shards, int32_t rank) {
    return has_rank(shards, rank) ? shards->shards.ranges(rank).size() : 0;
}
flexc_status flexc_shards_range(const flexc_shards* shards, int32_t rank, size_t index,
                                flexc_rank_range* range, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (shards == nullptr) return invalid("shards is NULL");
        if (index >= flexc_shards_range_count(shards, rank)) return invalid("no such range");
        const flexc::RowRange& found = shards->shards.ranges(rank)[index];
        flexc_rank_range value{};
        value.rank = rank;
        value.begin = found.begin;
        value.end = found.end;
        return fill_struct(range, value, "range");
    });
}

flexc_status flexc_mpi_communicator(const void* comm, const flexc_communicator_options* options,
                                    flexc_communicator** communicator, flexc_error** error) {
    return open_communicator(options, communicator, error,
                             [&](const auto& read) { return flexc::mpi_communicator(comm, read); });
}

flexc_status flexc_nccl_make_id(flexc_nccl_id* id, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (id == nullptr) return invalid("id is NULL");
        const auto made = flexc::nccl_id();
        if (!made) return made.error();
        std::memcpy(id->bytes, made->data(), sizeof id->bytes);
        return {};
    });
}

flexc_status flexc_nccl_communicator(const flexc_nccl_id* id, int32_t rank, int32_t ranks,
                                     int32_t device_index,
                                     const flexc_communicator_options* options,
                                     flexc_communicator** communicator, flexc_error** error) {
    return open_communicator(options, communicator, error, [&](const auto& read) -> Opened {
        if (id == nullptr) return invalid("id is NULL");
        flexc::NcclId own;
        std::memcpy(own.data(), id->bytes, own.size());
        return flexc::nccl_communicator(own, rank, ranks, flexc::Device::cuda(device_index), read);
    });
}

flexc_status flexc_nccl_communicator_by_file(const char* path, int32_t rank, int32_t ranks,
                                             int32_t device_index,
                                             const flexc_communicator_options* options,
                                             flexc_communicator** communicator,
                                             flexc_error** error) {
    return open_communicator(options, communicator, error, [&](const auto& read) -> Opened {
        if (path == nullptr) return invalid("path is NULL");
        return flexc::nccl_communicator(std::string(path), rank, ranks,
                                        flexc::Device::cuda(device_index), read);
    });
}

flexc_status flexc_nccl_communicator_of(void* comm, const flexc_communicator_options* options,
                                        flexc_communicator** communicator, flexc_error** error) {
    return open_communicator(options, communicator, error, [&](const auto& read) -> Opened {
        if (comm == nullptr) return invalid("comm is NULL");
        return flexc::nccl_communicator(comm, read);
    });
}

flexc_status flexc_in_process_communicators(int32_t ranks,
                                            const flexc_communicator_options* options,
                                            flexc_communicator** communicators,
                                            flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (communicators == nullptr) return invalid("communicators is NULL");
        const auto read = read_options(options);
        if (!read) return read.error();
        auto opened = flexc::in_process_communicators(ranks, *read);
        if (!opened) return opened.error();
        std::vector<std::unique_ptr<flexc_communicator>> made;
        for (auto& one : *opened)
            made.push_back(std::make_unique<flexc_communicator>(std::move(one)));
        for (auto& one : made)
            *communicators++ = one.release();
        return {};
    });
}

void flexc_communicator_free(flexc_communicator* communicator) { delete communicator; }
int32_t flexc_communicator_rank(const flexc_communicator* communicator) {
    return communicator == nullptr ? -1 : communicator->communicator->rank();
}
int32_t flexc_communicator_ranks(const flexc_communicator* communicator) {
    return communicator == nullptr ? 0 : communicator->communicator->ranks();
}

flexc_status flexc_communicator_refuse(const flexc_communicator* communicator, const char* why,
                                       flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (communicator == nullptr) return invalid("communicator is NULL");
        if (why == nullptr) return invalid("why is NULL");
        return refused(*communicator->communicator, invalid(why));
    });
}

flexc_status flexc_torchrun_rank(flexc_launched_rank* launched, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        const auto told = flexc::torchrun_rank();
        if (!told) return told.error();
        flexc_launched_rank value{};
        value.rank = told->rank;
        value.ranks = told->ranks;
        value.local_rank = told->local_rank;
        return fill_struct(launched, value, "launched");
    });
}

flexc_status flexc_distributed_compile(const char* text, const flexc_compile_options* options,
                                       const flexc_sharded_buffer* sharded, size_t sharded_count,
                                       flexc_distributed_kernel** kernel, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (kernel == nullptr) return invalid("kernel is NULL");
        *kernel = nullptr;
        CompileCall compile;
        if (auto read = compile.read(text, options); !read) return read;
        flexc::CompileOptions own = compile.options();
        for (std::size_t i = 0; i < sharded_count; ++i) {
            const auto read = read_element(sharded, i, "sharded");
            if (!read) return read.error();
            if (read->buffer == nullptr) return invalid("a sharded buffer has no name");
            if (read->dim == nullptr)
                return invalid(std::string("sharded buffer '") + read->buffer + "' has no dim");
            own.sharded.push_back({.buffer = read->buffer, .dim = read->dim});
        }
        auto compiled = flexc::compile_distributed(text, own);
        if (!compiled) return compiled.error();
        *kernel = new flexc_distributed_kernel{std::move(*compiled)};
        return {};
    });
}

void flexc_distributed_kernel_free(flexc_distributed_kernel* kernel) { delete kernel; }

const char* flexc_exchange_name(int32_t exchange) {
    if (exchange < FLEXC_EXCHANGE_AUTOMATIC || exchange > FLEXC_EXCHANGE_ULYSSES) return nullptr;
    return name(static_cast<flexc::Exchange>(exchange)).data();
}

flexc_status flexc_distributed_plan_create(const flexc_distributed_kernel* kernel,
                                           const flexc_distributed_sizes* sizes,
                                           const flexc_communicator* communicator,
                                           const flexc_named_tensor* buffers, size_t buffer_count,
                                           void* stream, const flexc_distributed_options* options,
                                           flexc_distributed_plan** plan, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (plan == nullptr) return invalid("plan is NULL");
        *plan = nullptr;
        if (kernel == nullptr) return invalid("kernel is NULL");
        if (communicator == nullptr) return invalid("communicator is NULL");
        const auto read = read_sizes(sizes);
        flexc::Communicator& ranks = *communicator->communicator;
        if (!read) return refused(ranks, read.error());
        const auto tensors = read_tensors(buffers, buffer_count);
        if (!tensors) return refused(ranks, tensors.error());
        const auto given = read_options(options);
        if (!given) return refused(ranks, given.error());
        auto made = kernel->kernel.plan(*read, communicator->communicator, *tensors, given->options,
                                        {stream});
        if (!made) return made.error();
        *plan = new flexc_distributed_plan{std::move(*made)};
        return {};
    });
}

void flexc_distributed_plan_free(flexc_distributed_plan* plan) { delete plan; }

flexc_status flexc_distributed_plan_traffic(const flexc_distributed_plan* plan,
                                            flexc_traffic* traffic, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (plan == nullptr) return invalid("plan is NULL");
        const flexc::Traffic& known = plan->plan.traffic();
        flexc_traffic value{};
        value.exchange = static_cast<std::int32_t>(plan->plan.exchange());
        value.forward_sent = known.forward_sent;
        value.forward_received = known.forward_received;
        value.backward_sent = known.backward_sent;
        value.backward_received = known.backward_received;
        value.pieces = known.pieces;
        value.visible_area = known.visible_area;
        value.fair_area = known.fair_area;
        return fill_struct(traffic, value, "traffic");
    });
}

flexc_status flexc_distributed_plan_explain(const flexc_distributed_plan* plan,
                                            flexc_text** explanation, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (explanation == nullptr) return invalid("explanation is NULL");
        *explanation = nullptr;
        if (plan == nullptr) return invalid("plan is NULL");
        *explanation = new flexc_text{plan->plan.explain()};
        return {};
    });
}

flexc_status flexc_distributed_forward(const flexc_distributed_kernel* kernel,
                                       const flexc_distributed_plan* plan,
                                       const flexc_forward_tensors* tensors,
                                       const flexc_named_tensor* buffers, size_t buffer_count,
                                       void* stream, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (auto checked = check_handles(kernel, plan); !checked) return checked;
        flexc::Communicator& ranks = *plan->plan.state().communicator;
        if (auto checked = check_lengths(tensors); !checked) return refused(ranks, checked.error());
        const auto read = flexc::api::read_forward(tensors);
        if (!read) return refused(ranks, read.error());
        const auto read_buffers = read_tensors(buffers, buffer_count);
        if (!read_buffers) return refused(ranks, read_buffers.error());
        return kernel->kernel.forward(plan->plan, *read, *read_buffers, {stream});
    });
}

flexc_status flexc_distributed_backward(const flexc_distributed_kernel* kernel,
                                        const flexc_distributed_plan* plan,
                                        const flexc_backward_tensors* tensors,
                                        const flexc_named_tensor* buffers, size_t buffer_count,
                                        const flexc_named_tensor* gradients, size_t gradient_count,
                                        void* stream, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (auto checked = check_handles(kernel, plan); !checked) return checked;
        flexc::Communicator& ranks = *plan->plan.state().communicator;
        if (auto checked = check_lengths(tensors); !checked) return refused(ranks, checked.error());
        const auto read = flexc::api::read_backward(tensors);
        if (!read) return refused(ranks, read.error());
        const auto read_buffers = read_tensors(buffers, buffer_count);
        if (!read_buffers) return refused(ranks, read_buffers.error());
        const auto read_gradients = read_tensors(gradients, gradient_count);
        if (!read_gradients) return refused(ranks, read_gradients.error());
        return kernel->kernel.backward(plan->plan, *read, *read_buffers, *read_gradients, {stream});
    });
}
