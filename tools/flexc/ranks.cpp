#include "flexc/ranks.h"

#include <cstring>
#include <iterator>
#include <map>

#include "flexc/command.h"
#include "flexc/stopwatch.h"
#include "support/key_layout.h"
#include "support/text.h"

namespace flexc::cli {

namespace {

void load(RankedCall& call, const Signature& signature, const TensorFile& file, bool backward) {
    const int rank = call.communicator().rank();
    for (const auto& buffer : signature.buffers) {
        const auto& entry = *file.find(buffer.name);
        call.add_buffer(buffer, entry.shape, value_of(file.read(entry)));
    }
    call.deal();
    const auto read = [&](const char* name) {
        const auto* entry = file.find(name);
        if (entry == nullptr) {
            return;
        }
        auto& tensor = call.add_input(name);
        tensor.each_run(rank, [&](std::size_t whole, std::size_t own, std::size_t size) {
            require(file.read(*entry, whole, std::span(tensor.bytes).subspan(own, size)));
        });
    };
    for (const char* name : {"q", "k", "v"}) {
        read(name);
    }
    if (backward) {
        read("do");
        read("dlse");
    }
}

// Collects the rows of all ranks into a whole tensor on rank 0.
void collect(Communicator& communicator, const RankTensor& tensor,
             std::vector<OutputTensor>& outputs) {
    constexpr int kChannel = 0;
    const int own_rank = communicator.rank();
    using Parts = std::map<int, std::vector<std::byte>>;
    auto parts = std::make_shared<Parts>();
    std::vector<Communicator::Message> sends, receives;
    for (int rank = 0; rank < communicator.ranks(); ++rank) {
        if (rank == own_rank) {
            (*parts)[rank] = tensor.bytes;
        } else if (own_rank == 0) {
            auto& part = (*parts)[rank];
            part.resize(tensor.bytes_of(tensor.shards->rows(rank)));
            receives.push_back({rank, part.data(), part.size()});
        }
    }
    if (own_rank != 0) {
        auto& own = (*parts)[own_rank];
        sends.push_back({0, own.data(), own.size()});
    }
    const auto ticket = value_of(communicator.start(kChannel, sends, receives, parts));
    require(communicator.wait(ticket));
    if (own_rank != 0) {
        return;
    }
    OutputTensor whole{.name = tensor.name,
                       .dtype = tensor.dtype,
                       .shape = tensor.shape(tensor.shards->length()),
                       .bytes = {}};
    whole.bytes.resize(tensor.bytes_of(tensor.shards->length()));
    for (const auto& [rank, part] : *parts) {
        const std::byte* const own = part.data();
        tensor.each_run(rank, [&](std::size_t to, std::size_t from, std::size_t size) {
            std::memcpy(whole.bytes.data() + to, own + from, size);
        });
    }
    outputs.push_back(std::move(whole));
}

} // namespace

void add_rank_options(CommandLine command, RankOption& option) {
    command.option("--ranks", option.ranks,
                   "one; mpi: each process that mpirun starts is a rank, on a CPU; or nccl: each "
                   "process that torchrun starts, or that has its RANK, WORLD_SIZE and LOCAL_RANK, "
                   "on a GPU",
                   {.among = {"one", "mpi", "nccl"}});
    command.option("--nccl-id", option.nccl_id,
                   "Of --ranks nccl: a file that is not there yet and that all ranks see, by which "
                   "they find each other");
    command.option("--exchange", option.exchange,
                   "Of ranks: auto, ring, zigzag (a ring with even work under a causal mask), "
                   "gather (all keys that a rank needs at once) or ulysses (some heads each)",
                   {.among = {"auto", "ring", "zigzag", "gather", "ulysses"}});
    command.option("--ranks-per-node", option.ranks_per_node,
                   "Of ulysses: heads are swapped inside nodes of so many ranks, neighbours by "
                   "number, and keys travel across nodes by ring");
}

std::shared_ptr<Communicator> open_ranks(const RankOption& option, const CompileOptions& layouts) {
    if (option.ranks == "one") {
        if (option.exchange != "auto") {
            fail_usage("--exchange is between ranks: give --ranks mpi or nccl too");
        }
        if (option.ranks_per_node != 0) {
            fail_usage("--ranks-per-node is of --ranks mpi or nccl, with --exchange ulysses");
        }
        return nullptr;
    }
    if (layouts.query_layout != layouts.key_layout ||
        !support::key_layout(layouts.key_layout).is_in_order) {
        fail_usage(formatted("--ranks is for queries and keys that are both dense or both ragged, "
                             "not for {} queries and {} keys",
                             name(layouts.query_layout), name(layouts.key_layout)));
    }
    if (option.ranks == "mpi") {
        return value_of(mpi_communicator());
    }
    if (option.nccl_id.empty()) {
        fail_usage("--ranks nccl: give --nccl-id too");
    }
    const auto launched = value_of(torchrun_rank());
    return value_of(
        nccl_communicator(option.nccl_id, launched.rank, launched.ranks, device_of(option)));
}

Device device_of(const RankOption& option, std::string_view asked) {
    if (asked != "auto" && (option.ranks != "mpi" || asked != "cpu")) {
        fail_usage(formatted("--device {}: ranks by {} compute on {}; leave it out", asked,
                             option.ranks, option.ranks == "mpi" ? "CPUs" : "a GPU each"));
    }
    return option.ranks == "nccl" ? Device::cuda(value_of(torchrun_rank()).local_rank)
                                  : Device::cpu();
}

RankedRun run_on_ranks(const RankedProblem& problem, const Signature& signature,
                       const TensorFile& file, std::shared_ptr<Communicator> communicator,
                       const RankOption& option) {
    RankedCall call(problem, std::move(communicator), option);
    load(call, signature, file, problem.backward);
    call.prepare();
    RankedRun result{.compile_ms = call.compile_ms(),
                     .from_cache = call.kernel().kernel().from_cache(),
                     .exchange = call.plan().exchange(),
                     .shards = call.shards(),
                     .plan = call.plan().explain(),
                     .traffic = call.plan().traffic(),
                     .outputs = {}};
    const auto time = [&](void (RankedCall::*pass)()) {
        return milliseconds([&] {
            (call.*pass)();
            call.synchronize();
        });
    };
    result.forward_ms = time(&RankedCall::forward);
    if (problem.backward) {
        result.backward_ms = time(&RankedCall::backward);
    }
    call.fetch();
    for (const auto* tensor : call.outputs()) {
        collect(call.communicator(), *tensor, result.outputs);
    }
    if (call.communicator().rank() == 0) {
        std::ranges::move(call.gradients(), std::back_inserter(result.outputs));
    }
    return result;
}

} // namespace flexc::cli
