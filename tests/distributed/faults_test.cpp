// What is wrong on one rank is an error on all, which names it; nobody waits for ever.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpu_options.h"
#include "distributed/collectives.h"
#include "distributed/host_sum.h"
#include "distributed/problem.h"

using namespace flexc;
using namespace flexc::test;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// What each rank's work gave, "" for success.
std::vector<std::string>
on_ranks(int ranks, double timeout_seconds,
         const std::function<Result<void>(std::shared_ptr<Communicator>)>& work) {
    auto communicators = *in_process_communicators(ranks, {.timeout_seconds = timeout_seconds});
    std::vector<std::string> errors(static_cast<std::size_t>(ranks));
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < errors.size(); ++rank)
        threads.emplace_back([&, rank] {
            if (auto done = work(std::move(communicators[rank])); !done)
                errors[rank] = done.error().message;
        });
    for (std::thread& thread : threads)
        thread.join();
    return errors;
}

DistributedKernel kernel_of(const std::string& text) {
    auto kernel = compile_distributed(text, cpu_options());
    REQUIRE_MESSAGE(kernel.has_value(), kernel.error().message);
    return *kernel;
}

DistributedSizes sizes_of(const Shards& shards) {
    return {.batch = 1, .heads = 2, .kv_heads = 1, .queries = shards, .keys = shards};
}

// Each rank's plan, with what `change` makes of it.
std::vector<std::string>
plans(int ranks,
      const std::function<Result<DistributedPlan>(const std::shared_ptr<Communicator>&, int rank)>&
          plan) {
    return on_ranks(ranks, 20, [&](std::shared_ptr<Communicator> communicator) -> Result<void> {
        const int rank = communicator->rank();
        auto made = plan(communicator, rank);
        if (!made) return made.error();
        return {};
    });
}

void check_all(const std::vector<std::string>& errors, const std::string& expected) {
    for (const std::string& error : errors)
        CHECK(error == expected);
}

// Of one rank, for 2 heads on 1 and 8 columns.
class CausalTensors {
  public:
    explicit CausalTensors(std::int64_t rows) : rows_(rows) {}
    ForwardTensors views() { return {of(q_, 2), of(k_, 1), of(v_, 1), of(o_, 2), {}}; }

  private:
    TensorView of(std::vector<float>& data, std::int64_t heads) const {
        data.resize(static_cast<std::size_t>(heads * rows_ * 8));
        return TensorView::contiguous(data.data(), DType::f32, {1, heads, rows_, 8});
    }
    std::int64_t rows_;
    std::vector<float> q_, k_, v_, o_;
};

// Ranks of it compare while they work, as those of NCCL do.
class Ahead final : public Communicator {
  public:
    explicit Ahead(std::shared_ptr<Communicator> inner)
        : inner_(std::move(inner)), rank_(inner_->rank()), ranks_(inner_->ranks()) {}
    int rank() const override { return rank_; }
    int ranks() const override { return ranks_; }
    Result<Ticket> start(int channel, std::span<const Message> sends,
                         std::span<const Message> receives, std::shared_ptr<void> memory) override {
        if (!inner_) return failed();
        return inner_->start(channel, sends, receives, std::move(memory));
    }
    Result<void> wait(Ticket ticket) override {
        if (!inner_) return failed();
        return inner_->wait(ticket);
    }
    bool runs_ahead() const override { return true; }
    void abandon() override { inner_.reset(); }

  private:
    static Error failed() { return {ErrorCode::io, "this communicator has failed before"}; }

    std::shared_ptr<Communicator> inner_;
    int rank_, ranks_;
};

} // namespace

TEST_CASE("a time that no clock has room for is waited for, not over at once") {
    for (const double timeout : {1e30, std::numeric_limits<double>::infinity()}) {
        const auto exchange =
            [](const std::shared_ptr<Communicator>& communicator) -> Result<void> {
            std::byte value{};
            const std::array message = {Communicator::Message{
                .peer = 1 - communicator->rank(), .data = &value, .bytes = 1}};
            std::span<const Communicator::Message> sends, receives;
            (communicator->rank() == 0 ? receives : sends) = message;
            if (communicator->rank() == 1)
                std::this_thread::sleep_for(std::chrono::milliseconds(30));
            const auto ticket = communicator->start(0, sends, receives, nullptr);
            if (!ticket) return ticket.error();
            return communicator->wait(*ticket);
        };
        check_all(on_ranks(2, timeout, exchange), "");
    }
}

TEST_CASE("other programs, sizes, shards, params and exchanges are found before anything travels") {
    if (!has_cpu()) return;
    const std::string text = "param p: f32 = 1\nscore_mod = score * p\nmask_mod = q_idx >= kv_idx";
    const DistributedKernel kernel = kernel_of(text), other = kernel_of("score_mod = score * 2");
    const Shards shards = *Shards::contiguous(60, 3);
    const std::string ending = " that rank 0 does not have: all ranks of a call must have the same";
    const auto start = Clock::now();
    check_all(plans(3,
                    [&](const auto& communicator, int rank) {
                        return (rank == 2 ? other : kernel).plan(sizes_of(shards), communicator);
                    }),
              "rank 2 has a program" + ending);
    check_all(plans(3,
                    [&](const auto& communicator, int rank) {
                        DistributedSizes sizes = sizes_of(shards);
                        if (rank == 1) sizes.heads = 4;
                        return kernel.plan(sizes, communicator);
                    }),
              "rank 1 has sizes" + ending);
    check_all(plans(3,
                    [&](const auto& communicator, int rank) {
                        return kernel.plan(sizes_of(rank == 1 ? *Shards::zigzag(60, 3) : shards),
                                           communicator);
                    }),
              "rank 1 has shards" + ending);
    check_all(plans(3,
                    [&](const auto& communicator, int rank) {
                        const ParamValue params[] = {{"p", 2}};
                        return kernel.plan(sizes_of(shards), communicator, {},
                                           {.params = rank == 2 ? std::span(params)
                                                                : std::span<const ParamValue>{}});
                    }),
              "rank 2 has a scale or params" + ending);
    check_all(plans(3,
                    [&](const auto& communicator, int rank) {
                        return kernel.plan(
                            sizes_of(shards), communicator, {},
                            {.exchange = rank == 0 ? Exchange::ring : Exchange::all_gather});
                    }),
              "rank 1 has an exchange or a reduction" + ending);
    CHECK(seconds_since(start) < 10);
}

TEST_CASE("a mask's buffers must hold the same on all ranks") {
    if (!has_cpu()) return;
    const DistributedKernel kernel =
        kernel_of("buffer doc: i32[KV_LEN]\nmask_mod = doc[q_idx] == doc[kv_idx]");
    const Shards shards = *Shards::contiguous(64, 2);
    std::vector<std::int32_t> one(64, 0), two(64, 0);
    for (std::size_t i = 32; i < 64; ++i)
        two[i] = 1;
    check_all(plans(2,
                    [&](const auto& communicator, int rank) {
                        const NamedTensor buffers[] = {
                            {"doc", TensorView::contiguous((rank == 0 ? one : two).data(),
                                                           DType::i32, {64})}};
                        return kernel.plan(sizes_of(shards), communicator, buffers);
                    }),
              "rank 1 has contents of buffers that the mask reads that rank 0 does not have: all "
              "ranks of a call must have the same");
    check_all(plans(2, [&](const auto& communicator,
                           int) { return kernel.plan(sizes_of(shards), communicator); }),
              "'doc': missing; the mask reads it, and decides what travels");
}

TEST_CASE("a call that is wrong on one rank is an error on all") {
    if (!has_cpu()) return;
    const DistributedKernel kernel = kernel_of("mask_mod = q_idx >= kv_idx");
    const Shards shards = *Shards::contiguous(60, 3);
    const auto errors = on_ranks(3, 20, [&](std::shared_ptr<Communicator> communicator) {
        const int rank = communicator->rank();
        const auto plan = kernel.plan(sizes_of(shards), communicator);
        if (!plan) return Result<void>(plan.error());
        std::vector<float> q(2 * 20 * 8), k(20 * 8), v(20 * 8), o(2 * 20 * 8);
        const auto rows = [](std::vector<float>& data, std::int64_t heads, std::int64_t count) {
            return TensorView::contiguous(data.data(), DType::f32, {1, heads, count, 8});
        };
        return kernel.forward(
            *plan,
            {rows(q, 2, 20), rows(k, 1, rank == 1 ? 19 : 20), rows(v, 1, 20), rows(o, 2, 20), {}});
    });
    CHECK(errors[1] == "k: expected shape [1, 1, 20, 8], got [1, 1, 19, 8]");
    CHECK(errors[0] == "rank 1: " + errors[1]);
    CHECK(errors[2] == errors[0]);
    // As many shards as ranks.
    const auto wrong = plans(3, [&](const auto& communicator, int) {
        return kernel.plan(sizes_of(*Shards::contiguous(60, 2)), communicator);
    });
    CHECK(wrong[0] == "the queries are shards of 2 ranks; the communicator has 3");
}

TEST_CASE("ranks that call with other plans") {
    if (!has_cpu()) return;
    const DistributedKernel kernel = kernel_of("mask_mod = q_idx >= kv_idx");
    check_all(on_ranks(2, 20,
                       [&](std::shared_ptr<Communicator> communicator) {
                           std::vector<DistributedPlan> plans;
                           for (const std::int64_t length : {40, 60}) {
                               auto plan = kernel.plan(sizes_of(*Shards::contiguous(length, 2)),
                                                       communicator);
                               if (!plan) return Result<void>(plan.error());
                               plans.push_back(*plan);
                           }
                           const bool is_second = communicator->rank() == 1;
                           CausalTensors tensors(is_second ? 30 : 20);
                           return kernel.forward(plans[is_second ? 1 : 0], tensors.views());
                       }),
              "rank 1 has a plan that rank 0 does not have: all ranks of a call must have the "
              "same");
}

TEST_CASE("ranks that run ahead find what differs while they work") {
    if (!has_cpu()) return;
    const DistributedKernel kernel = kernel_of("mask_mod = q_idx >= kv_idx");
    for (const Exchange exchange : {Exchange::ring, Exchange::all_gather, Exchange::ulysses})
        for (const bool is_wrong_plan : {false, true}) {
            CAPTURE(name(exchange));
            const auto start = Clock::now();
            const auto errors = on_ranks(3, 20, [&](std::shared_ptr<Communicator> inner) {
                const auto self = static_cast<std::size_t>(inner->rank());
                const auto ahead = std::make_shared<Ahead>(std::move(inner));
                const auto plan_of = [&](std::int64_t length) {
                    return kernel.plan(sizes_of(*Shards::contiguous(length, 3)), ahead, {},
                                       {.exchange = exchange});
                };
                const auto plan = plan_of(60), other = plan_of(90);
                if (!plan) return Result<void>(plan.error());
                if (!other) return Result<void>(other.error());
                CausalTensors tensors(20), others(30);
                if (auto done = kernel.forward(*plan, tensors.views()); !done) return done;
                if (auto done = kernel.forward(*other, others.views()); !done) return done;
                ForwardTensors wrong = tensors.views();
                if (self == 1 && !is_wrong_plan) wrong.k.shape[2] = 19;
                const auto done = self == 1 && is_wrong_plan
                                      ? kernel.forward(*other, others.views())
                                      : kernel.forward(*plan, wrong);
                // Some ranks may have started what others will not join.
                if (kernel.forward(*plan, tensors.views()))
                    return Result<void>(Error{ErrorCode::internal, "a call after the error"});
                return done;
            });
            const std::string of_k = "k: expected shape [1, 1, 20, 8], got [1, 1, 19, 8]";
            for (const std::size_t rank : {0, 1, 2})
                CHECK(errors[rank] ==
                      (is_wrong_plan ? "rank 1 has a plan that rank 0 does not have: all ranks of "
                                       "a call must have the same"
                       : rank == 1   ? of_k
                                     : "rank 1: " + of_k));
            CHECK(seconds_since(start) < 10);
        }
}

TEST_CASE("a rank that is gone, and one that is late: errors in time, three times out of three") {
    if (!has_cpu()) return;
    const DistributedProblem problem(
        {.text = "buffer s: f32[H] grad\nscore_mod = score + s[h] * kv_idx"}, 3);
    const Shards shards = *Shards::contiguous(problem.what().q_len, 3);
    // Stops working at its `limit`-th message of all.
    class Failing final : public Communicator {
      public:
        Failing(std::shared_ptr<Communicator> inner, int limit, bool only_sleeps)
            : inner_(std::move(inner)), limit_(limit), only_sleeps_(only_sleeps) {}
        int rank() const override { return inner_->rank(); }
        int ranks() const override { return inner_->ranks(); }
        Result<Ticket> start(int channel, std::span<const Message> sends,
                             std::span<const Message> receives,
                             std::shared_ptr<void> memory) override {
            if (rank() == 1 && --limit_ < 0) {
                if (only_sleeps_) std::this_thread::sleep_for(std::chrono::milliseconds(900));
                return Error{ErrorCode::io, "this rank was killed"};
            }
            return inner_->start(channel, sends, receives, std::move(memory));
        }
        Result<void> wait(Ticket ticket) override { return inner_->wait(ticket); }

      private:
        std::shared_ptr<Communicator> inner_;
        int limit_;
        bool only_sleeps_;
    };
    for (int run = 0; run < 3; ++run)
        for (const int limit : {0, 1, 2, 4, 7})
            for (const bool only_sleeps : {false, true}) {
                if (only_sleeps && limit != 4) continue;
                CAPTURE(limit);
                const auto start = Clock::now();
                const Outcome outcome = problem.on_ranks(
                    shards, shards,
                    {.timeout_seconds = only_sleeps ? 0.4 : 30.0,
                     .wrap = [&](std::shared_ptr<Communicator> inner) {
                         return std::make_shared<Failing>(std::move(inner), limit, only_sleeps);
                     }});
                CHECK(outcome.errors[1] == "this rank was killed");
                for (const std::size_t rank : {0, 2}) {
                    const std::string& error = outcome.errors[rank];
                    CHECK_MESSAGE((error == "rank 1 has gone" ||
                                   error == "rank 1 did not answer within 0.4 seconds" ||
                                   // Who waited for rank 1 leaves in turn.
                                   error == "rank 0 has gone" || error == "rank 2 has gone"),
                                  error);
                }
                CHECK(seconds_since(start) < 5);
            }
}

TEST_CASE("messages of other sizes are an error on both sides; order and channels are kept") {
    const auto sizes = on_ranks(2, 20, [](std::shared_ptr<Communicator> communicator) {
        std::vector<std::byte> data(16);
        const int peer = 1 - communicator->rank();
        const Communicator::Message send{peer, data.data(), communicator->rank() == 0 ? 8u : 16u};
        const Communicator::Message receive{peer, data.data(), 8};
        const auto ticket = communicator->start(0, std::span(&send, 1), std::span(&receive, 1), {});
        if (!ticket) return Result<void>(ticket.error());
        return communicator->wait(*ticket);
    });
    CHECK(sizes[0] == "rank 1 has 16 bytes for rank 0, which has 8");
    CHECK(sizes[1] == "rank 0 has 8 bytes for rank 1, which has 16");
    const auto order = on_ranks(2, 20, [](std::shared_ptr<Communicator> communicator) {
        const int rank = communicator->rank();
        std::vector<int> out = {10, 11, 20, 21}, in(4);
        const auto message = [&](int& value) {
            return Communicator::Message{1 - rank, &value, sizeof value};
        };
        std::vector<Communicator::Ticket> tickets;
        // Channels are started in another order on each side.
        for (const int channel : rank == 0 ? std::vector{0, 1} : std::vector{1, 0})
            for (int i = 0; i < 2; ++i) {
                const auto at = static_cast<std::size_t>(2 * channel + i);
                const auto send = message(out[at]), receive = message(in[at]);
                const auto ticket =
                    communicator->start(channel, std::span(&send, 1), std::span(&receive, 1), {});
                if (!ticket) return Result<void>(ticket.error());
                tickets.push_back(*ticket);
            }
        for (const auto ticket : tickets)
            if (auto done = communicator->wait(ticket); !done) return done;
        return in == out ? Result<void>() : Result<void>(Error{ErrorCode::internal, "order"});
    });
    check_all(order, "");
}

TEST_CASE("collectives: every rank's record, and the same sum everywhere") {
    for (const int ranks : {1, 2, 5})
        for (const std::size_t count : {0u, 1u, 3u, 100u}) {
            std::vector<std::vector<float>> sums(static_cast<std::size_t>(ranks));
            const auto errors =
                on_ranks(ranks, 20, [&](std::shared_ptr<Communicator> communicator) {
                    const int rank = communicator->rank();
                    const int record = 7 * rank;
                    auto all = distributed::all_gather(*communicator,
                                                       std::as_bytes(std::span(&record, 1)));
                    if (!all) return Result<void>(all.error());
                    for (int other = 0; other < ranks; ++other) {
                        int value = 0;
                        std::memcpy(&value, all->data() + other * static_cast<int>(sizeof value),
                                    sizeof value);
                        if (value != 7 * other)
                            return Result<void>(Error{ErrorCode::internal, "record"});
                    }
                    std::vector<float>& own = sums[static_cast<std::size_t>(rank)];
                    for (std::size_t i = 0; i < count; ++i)
                        own.push_back(1.0f / static_cast<float>(rank + 3 + static_cast<int>(i)));
                    return sum_over_ranks(*communicator, own, 0.5f);
                });
            check_all(errors, "");
            for (const auto& own : sums) {
                CHECK(own == sums[0]);
                for (std::size_t i = 0; i < count; ++i) {
                    double sum = 0;
                    for (int rank = 0; rank < ranks; ++rank)
                        sum += 0.5 / (rank + 3 + static_cast<double>(i));
                    CHECK(own[i] == doctest::Approx(sum));
                }
            }
        }
    CHECK(!in_process_communicators(0));
}

TEST_CASE("what there is not for many ranks is said when it is compiled") {
    CompileOptions options = cpu_options();
    options.query_layout = Layout::ragged; // and not of keys
    CHECK(compile_distributed("score", options).error().code == ErrorCode::unsupported);
    options = cpu_options();
    options.kv_dtype = DType::i8;
    CHECK(compile_distributed("score", options).error().code == ErrorCode::unsupported);
    options = cpu_options();
    options.max_scores = true;
    CHECK(compile_distributed("score", options).error().code == ErrorCode::unsupported);
    CHECK(compile_distributed("score +", cpu_options()).error().code == ErrorCode::syntax);
    CHECK(!DistributedKernel().plan({}, nullptr));
}
