#include "distributed/matrix.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <random>
#include <thread>

#include "cuda/driver.h"

namespace flexc::test {

const std::vector<NamedText> kMasks = {
    {"none", ""},
    {"causal", "mask_mod = q_idx >= kv_idx"},
    {"window", "mask_mod = 0 <= q_idx - kv_idx < 25"},
    {"documents", "buffer doc: i32[KV_LEN]\nmask_mod = doc[q_idx] == doc[kv_idx]"},
    {"prefix", "buffer lens: i32[B]\nmask_mod = kv_idx < lens[b] or q_idx >= kv_idx"},
    {"exhaustive", "mask_mod = (q_idx * 31 + kv_idx * 17) % 5 == 0"},
};

const std::vector<NamedText> kMods = {
    {"no mod", "score_mod = score"},
    {"learned ALiBi",
     "buffer slopes: f32[H] grad\nscore_mod = score + slopes[h] * (kv_idx - q_idx) * 0.1"},
    {"T5 table", "buffer table: f32[32, H] grad\n"
                 "score_mod = score + table[clamp(q_idx - kv_idx + 16, 0, 31), h]"},
    {"key bias", "buffer keys: f32[H, KV_LEN] grad\nscore_mod = score + keys[h, kv_idx]"},
    {"dense bias",
     "buffer bias: f32[H, Q_LEN, KV_LEN] grad\nscore_mod = score + bias[h, q_idx, kv_idx]"},
    {"row gate", "buffer gate: f32[Q_LEN] grad\nscore_mod = score * (1 + gate[q_idx])"},
};

const std::vector<ShardedText> kShardedPrograms = {
    {"buffer gate: f32[Q_LEN] grad\nscore_mod = score * (1 + gate[q_idx])", {{"gate", "Q_LEN"}}},
    {"buffer keys: bf16[H, KV_LEN] grad\nscore_mod = score + keys[h, kv_idx]",
     {{"keys", "KV_LEN"}}},
    {"buffer bias: f32[H, Q_LEN, KV_LEN] grad\nscore_mod = score + bias[h, q_idx, kv_idx]",
     {{"bias", "Q_LEN"}}},
    {"buffer bias: f32[H, Q_LEN, KV_LEN] grad\nscore_mod = score + bias[h, q_idx, kv_idx]",
     {{"bias", "KV_LEN"}}},
    {"buffer a: f32[KV_LEN, 3] grad\nbuffer c: f32[Q_LEN, 3] grad\nbuffer n: i32[KV_LEN]\n"
     "buffer s: f32[H] grad\nsink = s[h] + c[q_idx, 0]\n"
     "score_mod = score + sum(i in 0..3: a[kv_idx, i] * c[q_idx, i]) + 0.1 * n[kv_idx]",
     {{"a", "KV_LEN"}, {"c", "Q_LEN"}, {"n", "KV_LEN"}}},
};

DistributedCase case_of(const std::string& mod, const std::string& mask) {
    DistributedCase one{.text = mod + "\n" + mask};
    one.integers["doc"] = [](std::int64_t i) { return i / 23; };
    one.integers["lens"] = [](std::int64_t) { return 31; };
    return one;
}

std::vector<Sharding> shardings(std::int64_t q_len, std::int64_t kv_len, int ranks) {
    std::vector<Sharding> all = {
        {"contiguous", *Shards::contiguous(q_len, ranks), *Shards::contiguous(kv_len, ranks)},
        {"zigzag", *Shards::zigzag(q_len, ranks), *Shards::zigzag(kv_len, ranks)}};
    // The first rank has no keys and the last no queries; rows are out of order.
    std::vector<std::vector<RowRange>> queries(static_cast<std::size_t>(ranks)),
        keys(static_cast<std::size_t>(ranks));
    const auto last = static_cast<std::size_t>(ranks - 1);
    queries[0] = {{q_len / 2, q_len}, {0, q_len / 3}};
    queries[last > 1 ? 1 : 0].push_back({q_len / 3, q_len / 2});
    keys[last] = {{kv_len - 7, kv_len}, {0, kv_len / 2}};
    keys[last > 1 ? 1 : last].push_back({kv_len / 2, kv_len - 7});
    all.push_back({"uneven", *Shards::of(q_len, queries), *Shards::of(kv_len, keys)});
    return all;
}

void check_shardings(const DistributedProblem& problem, std::initializer_list<int> rank_counts,
                     const RunOptions& options) {
    const Outcome one = problem.on_one_rank(options.o_type);
    for (const int ranks : rank_counts)
        for (const Sharding& sharding :
             shardings(problem.what().q_len, problem.what().kv_len, ranks))
            for (const Exchange exchange :
                 {Exchange::ring, Exchange::all_gather, Exchange::ulysses}) {
                CAPTURE(ranks);
                CAPTURE(sharding.name);
                CAPTURE(name(exchange));
                RunOptions own = options;
                own.exchange = exchange;
                const std::string differences = compare_runs(
                    problem,
                    [&](const DistributedProblem& drawn) {
                        return drawn.on_ranks(sharding.queries, sharding.keys, own);
                    },
                    [&](const DistributedProblem& drawn) {
                        return &drawn == &problem ? one : drawn.on_one_rank(options.o_type);
                    });
                CHECK_MESSAGE(differences.empty(), differences);
            }
}

void check_sums_of_sinks(const DistributedProblem& problem, int ranks) {
    const std::int64_t rows = problem.what().q_len;
    for (const Sharding& sharding : shardings(rows, problem.what().kv_len, ranks))
        for (const Exchange exchange : {Exchange::ring, Exchange::all_gather, Exchange::ulysses}) {
            CAPTURE(sharding.name);
            CAPTURE(name(exchange));
            const Outcome outcome =
                problem.on_ranks(sharding.queries, sharding.keys, {.exchange = exchange});
            REQUIRE(outcome.error == "");
            const auto& of_heads = outcome.d_buffers.at("s");
            const auto& of_rows = outcome.d_buffers.at("t");
            for (std::size_t head = 0; head < of_heads.size(); ++head) {
                double sum = 0, absolute = 0;
                for (std::int64_t row = 0; row < rows; ++row) {
                    const double one = of_rows[head * static_cast<std::size_t>(rows) +
                                               static_cast<std::size_t>(row)];
                    sum += one;
                    absolute += std::abs(one);
                }
                CAPTURE(head);
                CHECK(absolute > 0);
                CHECK(std::abs(of_heads[head] - sum) <=
                      std::ldexp(static_cast<double>(rows), -24) * absolute);
            }
        }
}

namespace {

// Waits now and then, on the host and in the stream.
class Delayed final : public Communicator {
  public:
    Delayed(std::shared_ptr<Communicator> inner, std::uint32_t seed, Device device)
        : inner_(std::move(inner)), random_(seed) {
        if (device.kind != Device::Kind::cuda) return;
        auto memory = DeviceMemory::allocate(device, std::size_t{64} << 20);
        REQUIRE(memory.has_value());
        scratch_ = std::move(*memory);
    }
    int rank() const override { return inner_->rank(); }
    int ranks() const override { return inner_->ranks(); }
    Result<Ticket> start(int channel, std::span<const Message> sends,
                         std::span<const Message> receives, std::shared_ptr<void> memory) override {
        pause();
        return inner_->start(channel, sends, receives, std::move(memory));
    }
    Result<void> wait(Ticket ticket) override {
        pause();
        return inner_->wait(ticket);
    }
    bool has_streams() const override { return inner_->has_streams(); }
    Result<Ticket> start_on_stream(Stream stream, int channel, std::span<const Message> sends,
                                   std::span<const Message> receives,
                                   std::shared_ptr<void> memory) override {
        pause();
        if (auto done = pause(stream); !done) return done.error();
        auto ticket = inner_->start_on_stream(stream, channel, sends, receives, std::move(memory));
        if (auto done = pause(stream); !done) return done.error();
        return ticket;
    }
    Result<void> wait_on_stream(Ticket ticket, Stream stream) override {
        pause();
        if (auto done = inner_->wait_on_stream(ticket, stream); !done) return done;
        return pause(stream);
    }
    Result<void> finish_streams() override { return inner_->finish_streams(); }

  private:
    void pause() { std::this_thread::sleep_for(std::chrono::microseconds(random_() % 3000)); }
    Result<void> pause(Stream stream) {
        auto scope = cuda::ContextScope::enter(0, stream.handle);
        if (!scope) return scope.error();
        for (std::uint32_t i = random_() % 64; i > 0; --i)
            if (auto done = cuda::fill_async(scratch_.data(), 0, scratch_.bytes(), stream.handle);
                !done)
                return done;
        return {};
    }

    std::shared_ptr<Communicator> inner_;
    std::mt19937 random_;
    DeviceMemory scratch_;
};

} // namespace

void check_same_bits(const DistributedProblem& problem, const Shards& shards, RunOptions options,
                     std::uint32_t runs) {
    CAPTURE(name(options.exchange));
    const Outcome first = problem.on_ranks(shards, shards, options);
    REQUIRE(first.error == "");
    for (std::uint32_t run = 0; run < runs; ++run) {
        options.wrap = [&, run](std::shared_ptr<Communicator> inner) {
            const auto seed = run * 8 + static_cast<std::uint32_t>(inner->rank());
            return std::make_shared<Delayed>(std::move(inner), seed, problem.what().device);
        };
        const Outcome again = problem.on_ranks(shards, shards, options);
        CHECK(again.error == "");
        CHECK(again.o == first.o);
        CHECK(again.lse == first.lse);
        CHECK(again.dq == first.dq);
        CHECK(again.dk == first.dk);
        CHECK(again.dv == first.dv);
        CHECK(again.d_buffers == first.d_buffers);
    }
}

} // namespace flexc::test
