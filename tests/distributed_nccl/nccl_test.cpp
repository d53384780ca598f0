// Ranks that are processes with a GPU each, by NCCL. Started without RANK the program starts itself
// once for each GPU, or as often as --ranks=N says; every rank prints what it finds, and any
// failure is the exit status. 77: there is no NCCL, or no GPU.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "distributed/collectives.h"
#include "distributed/nccl_api.h"
#include "distributed/on_processes.h"
#include "flexc/distributed.h"

using namespace flexc;
using namespace flexc::test;

namespace {

constexpr const char* kIdFile = "FLEXC_TEST_NCCL_ID"; // what the ranks find each other by

std::shared_ptr<Communicator> communicator; // of all ranks, for all tests
Device device;

// Another one of the same ranks, whose id goes by the first.
std::shared_ptr<Communicator> another(double timeout_seconds) {
    const auto made = communicator->rank() == 0 ? nccl_id() : Result<NcclId>(NcclId{});
    REQUIRE_MESSAGE(made.has_value(), made.error().message);
    const auto ids = distributed::all_gather(*communicator, *made);
    REQUIRE_MESSAGE(ids.has_value(), ids.error().message);
    NcclId id;
    std::memcpy(id.data(), ids->data(), id.size());
    auto other = nccl_communicator(id, communicator->rank(), communicator->ranks(), device,
                                   {.timeout_seconds = timeout_seconds});
    REQUIRE_MESSAGE(other.has_value(), other.error().message);
    return *other;
}

} // namespace

TEST_CASE("exchanges and shards over GPUs: ragged requests") {
    check_processes(communicator, device, Processes::ragged);
}
TEST_CASE("exchanges and shards over GPUs: learned slopes under a causal mask") {
    check_processes(communicator, device, Processes::learned_slopes);
}
TEST_CASE("exchanges and shards over GPUs: a learned bias in documents") {
    check_processes(communicator, device, Processes::learned_bias);
}
TEST_CASE("exchanges and shards over GPUs: sinks under a window") {
    check_processes(communicator, device, Processes::sinks);
}

TEST_CASE("ranks that differ get an error each, and may go on") {
    check_refusals(communicator, device);
}

TEST_CASE("a communicator that the caller lends is left to the caller") {
    const auto& api = distributed::nccl_api();
    REQUIRE(api);
    const auto made = communicator->rank() == 0 ? nccl_id() : Result<NcclId>(NcclId{});
    REQUIRE(made);
    const auto ids = distributed::all_gather(*communicator, *made);
    REQUIRE(ids);
    distributed::NcclUniqueId id;
    std::memcpy(id.bytes.data(), ids->data(), id.bytes.size());
    auto scope = cuda::ContextScope::enter(device.index);
    REQUIRE(scope);
    void* lent = nullptr;
    distributed::NcclConfig config;
    config.blocking = 1;
    REQUIRE(api->init_rank(&lent, communicator->ranks(), id, communicator->rank(), &config) == 0);
    {
        auto ours = nccl_communicator(lent, {.timeout_seconds = 60});
        REQUIRE_MESSAGE(ours.has_value(), ours.error().message);
        CHECK((*ours)->rank() == communicator->rank());
        CHECK((*ours)->ranks() == communicator->ranks());
        const int own = 3 * communicator->rank();
        const auto all = distributed::all_gather(**ours, std::as_bytes(std::span(&own, 1)));
        REQUIRE_MESSAGE(all.has_value(), all.error().message);
        for (int rank = 0; rank < communicator->ranks(); ++rank) {
            int value = 0;
            std::memcpy(&value, all->data() + static_cast<std::size_t>(rank) * sizeof value,
                        sizeof value);
            CHECK(value == 3 * rank);
        }
    }
    int state = -1;
    CHECK(api->async_error(lent, &state) == 0);
    CHECK(state == 0);
    CHECK(api->destroy(lent) == 0);
}

TEST_CASE("a rank that does not answer is named in time, on the host and in streams") {
    if (communicator->ranks() == 1) return;
    for (const bool on_stream : {false, true}) {
        CAPTURE(on_stream);
        const auto other = another(2);
        auto memory = DeviceMemory::allocate(device, 64);
        REQUIRE(memory);
        const int rank = communicator->rank();
        int value = 0;
        if (rank == 0) {
            const auto begin = std::chrono::steady_clock::now();
            Result<void> done;
            if (on_stream) {
                auto scope = cuda::ContextScope::enter(device.index);
                REQUIRE(scope);
                auto stream = cuda::create_stream();
                REQUIRE(stream);
                const Communicator::Message receive{1, memory->data(), 64};
                const auto ticket =
                    other->start_on_stream({*stream}, 0, {}, std::span(&receive, 1), {});
                done = ticket ? other->wait_on_stream(*ticket, {*stream}) : ticket.error();
                if (done) done = other->finish_streams();
                REQUIRE(cuda::destroy_stream(*stream));
            } else {
                const Communicator::Message receive{1, &value, sizeof value};
                const auto ticket = other->start(0, {}, std::span(&receive, 1), {});
                done = ticket ? other->wait(*ticket) : ticket.error();
            }
            const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
            REQUIRE(!done);
            CHECK(done.error().code == ErrorCode::io);
            CHECK(done.error().message == "rank 1 did not answer within 2 seconds");
            CHECK(waited.count() < 20);
        }
        // Nobody ends before.
        const auto met =
            distributed::all_gather(*communicator, std::as_bytes(std::span(&value, 1)));
        REQUIRE_MESSAGE(met.has_value(), met.error().message);
    }
}

// What ranks compare beside the work, after the first call.
TEST_CASE("a later call that is wrong on one rank is an error on all, in time") {
    const int rank = communicator->rank(), ranks = communicator->ranks();
    if (ranks == 1) return;
    const auto other = another(20);
    CompileOptions options;
    options.dtype = DType::bf16;
    options.head_dim = 64;
    options.device = device;
    options.backward = false;
    const auto kernel = compile_distributed("mask_mod = q_idx >= kv_idx", options);
    REQUIRE_MESSAGE(kernel.has_value(), kernel.error().message);
    const std::int64_t rows = 256;
    const Shards shards = *Shards::zigzag(rows * ranks, ranks);
    const auto plan =
        kernel->plan({.batch = 1, .heads = 2, .kv_heads = 2, .queries = shards, .keys = shards},
                     other, {}, {.exchange = Exchange::ring});
    REQUIRE_MESSAGE(plan.has_value(), plan.error().message);
    const std::vector<std::byte> zeros(static_cast<std::size_t>(rows) * 2 * 64 * 4);
    std::vector<DeviceMemory> memory;
    const auto tensor = [&](DType dtype, std::initializer_list<std::int64_t> shape) {
        auto made = DeviceMemory::allocate(device, zeros.size());
        REQUIRE(made);
        REQUIRE(made->upload(zeros.data(), zeros.size()));
        memory.push_back(std::move(*made));
        return TensorView::contiguous(memory.back().data(), dtype, shape);
    };
    const auto of_rows = [&](DType dtype) { return tensor(dtype, {1, 2, rows, 64}); };
    const ForwardTensors tensors{of_rows(DType::bf16), of_rows(DType::bf16), of_rows(DType::bf16),
                                 of_rows(DType::f32), tensor(DType::f32, {1, 2, rows})};
    for (int call = 0; call < 3; ++call)
        REQUIRE(kernel->forward(*plan, tensors, {}));
    ForwardTensors wrong = tensors;
    if (rank == 1) wrong.k.shape[1] = 1;
    const auto begin = std::chrono::steady_clock::now();
    const auto done = kernel->forward(*plan, wrong, {});
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    REQUIRE(!done);
    CHECK(done.error().code == ErrorCode::invalid_option);
    CHECK(done.error().message.starts_with("rank 1: ") == (rank != 1));
    CHECK(waited.count() < 10);
    CHECK_FALSE(kernel->forward(*plan, tensors, {}));
}

namespace {

// Dies at one of its steps.
class Dying final : public Communicator {
  public:
    Dying(std::shared_ptr<Communicator> inner, int steps)
        : inner_(std::move(inner)), steps_(steps) {}
    int rank() const override { return inner_->rank(); }
    int ranks() const override { return inner_->ranks(); }
    Result<Ticket> start(int channel, std::span<const Message> sends,
                         std::span<const Message> receives, std::shared_ptr<void> memory) override {
        return inner_->start(channel, sends, receives, std::move(memory));
    }
    Result<void> wait(Ticket ticket) override { return inner_->wait(ticket); }
    bool has_streams() const override { return true; }
    Result<Ticket> start_on_stream(Stream stream, int channel, std::span<const Message> sends,
                                   std::span<const Message> receives,
                                   std::shared_ptr<void> memory) override {
        if (rank() == 1 && steps_-- == 0) ::kill(::getpid(), SIGKILL);
        return inner_->start_on_stream(stream, channel, sends, receives, std::move(memory));
    }
    Result<void> wait_on_stream(Ticket ticket, Stream stream) override {
        return inner_->wait_on_stream(ticket, stream);
    }
    Result<void> finish_streams() override { return inner_->finish_streams(); }

  private:
    std::shared_ptr<Communicator> inner_;
    int steps_;
};

} // namespace

// By itself: --no-skip -tc="a rank dies*"; rank 1 is dead afterwards.
TEST_CASE("a rank dies in the middle of a pass: an error on all others" * doctest::skip()) {
    if (communicator->ranks() == 1) return;
    DistributedCase one{.text = "mask_mod = q_idx >= kv_idx", .device = device};
    one.head_dim = one.head_dim_v = 64;
    one.dtype = DType::bf16;
    const DistributedProblem problem(one, 1);
    const Shards shards = *Shards::zigzag(one.q_len, communicator->ranks());
    constexpr int kForwards = 1; // exchanges of a ring of two ranks, before those of backward
    Outcome outcome = problem.empty_outcome(communicator->ranks());
    // Compiles, for which others would wait for more than five seconds.
    const auto first = problem.on_rank(another(60), shards, shards, {}, outcome);
    REQUIRE_MESSAGE(first.has_value(), first.error().message);
    const auto dying = std::make_shared<Dying>(another(5), kForwards);
    const auto begin = std::chrono::steady_clock::now();
    const auto done = problem.on_rank(dying, shards, shards, {}, outcome);
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    REQUIRE(!done);
    MESSAGE(done.error().message << " after " << waited.count() << " s");
    CHECK(done.error().code == ErrorCode::io);
    CHECK(done.error().message.find("rank") != std::string::npos);
    CHECK(waited.count() < 60);
    std::fflush(stdout);
    std::_Exit(done ? 1 : 0); // the other communicator has lost a rank as well
}

namespace {

int run_rank(int argc, char** argv) {
    const auto launched = torchrun_rank();
    if (!launched) {
        std::fprintf(stderr, "%s\n", launched.error().message.c_str());
        return 1;
    }
    device = Device::cuda(launched->local_rank);
    return run_tests(nccl_communicator(std::getenv(kIdFile), launched->rank, launched->ranks,
                                       device, {.timeout_seconds = 60}),
                     communicator, argc, argv);
}

int start_ranks(int ranks, char** argv) {
    const auto folder = std::filesystem::temp_directory_path();
    const std::string id = folder / ("flexc-nccl-" + std::to_string(::getpid()));
    ::setenv(kIdFile, id.c_str(), 1);
    ::setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
    std::vector<pid_t> processes;
    for (int rank = 0; rank < ranks; ++rank) {
        ::setenv("RANK", std::to_string(rank).c_str(), 1);
        ::setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
        const pid_t process = ::fork();
        if (process == 0) {
            ::execv("/proc/self/exe", argv);
            std::_Exit(1);
        }
        processes.push_back(process);
    }
    int result = 0;
    for (const pid_t process : processes) {
        int status = 0;
        ::waitpid(process, &status, 0);
        if (WIFEXITED(status))
            result = std::max(result, WEXITSTATUS(status));
        else
            std::fprintf(stderr, "a rank ended by signal %d\n", WTERMSIG(status));
    }
    std::filesystem::remove(id);
    return result;
}

} // namespace

int main(int argc, char** argv) {
    if (std::getenv("RANK") != nullptr) return run_rank(argc, argv);
    const auto driver = cuda::driver_info();
    int ranks = driver ? driver->device_count : 0;
    for (int i = 1; i < argc; ++i)
        if (std::sscanf(argv[i], "--ranks=%d", &ranks) == 1) break;
    if (ranks == 0) return 77;
    if (const auto& api = distributed::nccl_api(); !api) {
        std::fprintf(stderr, "%s\n", api.error().message.c_str());
        return 77;
    }
    return start_ranks(ranks, argv);
}
