// Many ranks against one, forward and backward, by the definition in double.
#include <doctest/doctest.h>

#include <chrono>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpu_options.h"
#include "distributed/matrix.h"
#include "distributed/problem.h"
#include "distributed/ulysses.h"
#include "support/text.h"

using namespace flexc;
using namespace flexc::test;

namespace {

void one_rank_refuses(const char* text, const ShardedBuffer& sharded, const char* message) {
    CompileOptions options = cpu_options();
    options.sharded = {sharded};
    const auto kernel = compile_distributed(text, options);
    REQUIRE(!kernel);
    CHECK(kernel.error().message == message);
}

// What ranks start, of each pair of them: (channel, bytes) from one to the other.
struct Started {
    using Messages = std::vector<std::pair<int, std::size_t>>;
    std::mutex mutex;
    std::map<std::pair<int, int>, Messages> sends, receives;
};
class Noted final : public Communicator {
  public:
    Noted(std::shared_ptr<Communicator> inner, Started& started)
        : inner_(std::move(inner)), started_(started) {}
    int rank() const override { return inner_->rank(); }
    int ranks() const override { return inner_->ranks(); }
    Result<Ticket> start(int channel, std::span<const Message> sends,
                         std::span<const Message> receives, std::shared_ptr<void> memory) override {
        {
            const std::lock_guard lock(started_.mutex);
            for (const Message& one : sends)
                started_.sends[{rank(), one.peer}].emplace_back(channel, one.bytes);
            for (const Message& one : receives)
                started_.receives[{one.peer, rank()}].emplace_back(channel, one.bytes);
        }
        return inner_->start(channel, sends, receives, std::move(memory));
    }
    Result<void> wait(Ticket ticket) override { return inner_->wait(ticket); }

  private:
    std::shared_ptr<Communicator> inner_;
    Started& started_;
};

} // namespace

TEST_CASE("every mask with every mod, in every exchange, forward and backward") {
    if (!has_cpu()) return;
    const std::uint32_t seed = fresh_seed();
    for (const auto& [mask_name, mask] : kMasks)
        for (const auto& [mod_name, mod] : kMods) {
            CAPTURE(mask_name);
            CAPTURE(mod_name);
            check_shardings(DistributedProblem(case_of(mod, mask), seed), {2, 3});
        }
}

TEST_CASE("one to eight ranks, GQA, batches, narrow types, heads of values, the gradient of lse") {
    if (!has_cpu()) return;
    const std::uint32_t seed = fresh_seed();
    DistributedCase one = case_of(kMods[1].second, kMasks[1].second);
    one.batch = 2;
    one.heads = 4;
    one.kv_heads = 2;
    one.q_len = 61;
    one.kv_len = 83;
    one.head_dim_v = 16;
    one.with_d_lse = true;
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        CAPTURE(name(dtype));
        one.dtype = dtype;
        check_shardings(DistributedProblem(one, seed), {1, 4, 8});
        check_shardings(DistributedProblem(one, seed), {3}, {.o_type = dtype});
    }
    one.kv_heads = 1;
    one.text = kMods[4].second + "\n" + kMasks[4].second;
    check_shardings(DistributedProblem(one, seed), {8});
}

TEST_CASE("sinks enter once, and learn once") {
    if (!has_cpu()) return;
    const std::uint32_t seed = fresh_seed();
    for (const char* sink :
         {"buffer s: f32[H] grad\nsink = s[h] + 1", "sink = 3.0",
          "buffer t: f32[H, Q_LEN] grad\nscore_mod = score + t[h, 0]\nsink = t[h, q_idx]",
          "buffer s: f32[H] grad\nsink = where(q_idx % 3 == 0, -inf, s[h])"})
        for (const bool with_d_lse : {false, true}) {
            CAPTURE(sink);
            DistributedCase one = case_of(sink, kMasks[2].second);
            one.with_d_lse = with_d_lse;
            one.dtype = with_d_lse ? DType::bf16 : DType::f32;
            check_shardings(DistributedProblem(one, seed), {1, 3});
        }
}

TEST_CASE("what a sink of a head learns is the sum over its rows") {
    if (!has_cpu()) return;
    const std::uint32_t seed = fresh_seed();
    for (const DType dtype : {DType::f32, DType::bf16}) {
        DistributedCase one = case_of(kSinkOfHeadAndRow, kMasks[2].second);
        one.dtype = dtype;
        one.with_d_lse = true;
        check_sums_of_sinks(DistributedProblem(one, seed), 3);
    }
}

TEST_CASE("a sink of rows that see nothing learns nothing of them") {
    if (!has_cpu()) return;
    const std::uint32_t seed = fresh_seed();
    for (const char* sink : {"buffer s: f32[H] grad\nsink = s[h] + 1",
                             "buffer t: f32[Q_LEN] grad\nsink = log(t[q_idx] * t[q_idx])"}) {
        CAPTURE(sink);
        check_shardings(DistributedProblem(case_of(sink, "mask_mod = q_idx > kv_idx + 7"), seed),
                        {1, 3});
    }
}

TEST_CASE("buffers sharded along queries or keys: each rank has its rows, and their gradients") {
    if (!has_cpu()) return;
    const std::uint32_t seed = fresh_seed();
    for (const ShardedText& program : kShardedPrograms) {
        CAPTURE(program.text);
        DistributedCase one = case_of(program.text, kMasks[1].second);
        one.sharded = program.sharded;
        check_shardings(DistributedProblem(one, seed), {1, 3, 4});
    }
    one_rank_refuses("buffer keys: f32[KV_LEN]\nscore_mod = score + keys[kv_idx + 1]",
                     {"keys", "KV_LEN"},
                     "buffer 'keys' sharded along KV_LEN: a read has another index there than "
                     "kv_idx itself: have it whole on every rank");
    one_rank_refuses("buffer doc: i32[KV_LEN]\nmask_mod = doc[kv_idx] > 0", {"doc", "KV_LEN"},
                     "buffer 'doc' is sharded, and the mask reads it: have it whole on every rank");
    one_rank_refuses("buffer s: f32[H]\nscore_mod = score + s[h]", {"s", "H"},
                     "buffer 's' sharded along H: buffers are sharded along Q_LEN or KV_LEN");
    one_rank_refuses("buffer s: f32[H]\nscore_mod = score + s[h]", {"s", "Q_LEN"},
                     "buffer 's' sharded along Q_LEN: it has no such dim");
    one_rank_refuses("score", {"s", "Q_LEN"},
                     "buffer 's' sharded along Q_LEN: the program has no such buffer");
}

TEST_CASE("gradients of buffers: of each rank, their sum, their average; in their own type") {
    if (!has_cpu()) return;
    DistributedCase one = case_of("buffer table: bf16[32, H] grad\n"
                                  "score_mod = score + table[clamp(q_idx - kv_idx + 16, 0, 31), h]",
                                  "");
    const DistributedProblem problem(one, 5);
    const Shards shards = *Shards::contiguous(one.q_len, 3);
    const Outcome sum = problem.on_ranks(shards, shards);
    REQUIRE(sum.error == "");
    const Outcome none = problem.on_ranks(shards, shards, {.reduction = GradientReduction::none});
    const Outcome average =
        problem.on_ranks(shards, shards, {.reduction = GradientReduction::average});
    const auto& wanted = sum.d_buffers.at("table");
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        double added = 0;
        for (const auto& of_rank : none.of_ranks)
            added += of_rank.at("table")[i];
        CHECK(added == doctest::Approx(wanted[i]).epsilon(1e-6));
        CHECK(average.d_buffers.at("table")[i] * 3 == doctest::Approx(wanted[i]).epsilon(1e-6));
    }
    for (const Outcome* outcome : {&sum, &average})
        for (const auto& of_rank : outcome->of_ranks)
            CHECK(of_rank.at("table") == outcome->d_buffers.at("table"));
    one.gradient_type = GradientType::buffer;
    const DistributedProblem narrow(one, 5);
    CHECK(compare(narrow, narrow.on_ranks(shards, shards), narrow.on_one_rank()) == "");
}

TEST_CASE("two ranks start the messages between them in one order") {
    if (!has_cpu()) return;
    // The first two quarters see each other, and so do the second and the fourth: in a ring of four
    // the third rank needs nobody, and the first nobody in the middle step.
    DistributedCase one =
        case_of(kMods[0].second, "buffer quarter: i32[KV_LEN]\n"
                                 "mask_mod = (quarter[q_idx] <= 1 and quarter[kv_idx] <= 1) or "
                                 "(quarter[q_idx] % 2 == 1 and quarter[kv_idx] % 2 == 1)");
    one.heads = 1;
    one.q_len = one.kv_len = 1024;
    one.integers["quarter"] = [](std::int64_t i) { return i / 256; };
    const DistributedProblem problem(one, 1);
    const Shards shards = *Shards::contiguous(one.q_len, 4);
    for (const Exchange exchange : {Exchange::ring, Exchange::all_gather}) {
        CAPTURE(name(exchange));
        Started started;
        const Outcome outcome = problem.on_ranks(
            shards, shards,
            {.exchange = exchange, .wrap = [&](std::shared_ptr<Communicator> inner) {
                 return std::make_shared<Noted>(std::move(inner), started);
             }});
        CHECK(outcome.error == "");
        CHECK((started.sends == started.receives));
    }
}

TEST_CASE("the same bits, whatever the timing") {
    if (!has_cpu()) return;
    DistributedCase one = case_of(kMods[2].second, kMasks[1].second);
    one.heads = 4;
    one.kv_heads = 2;
    const DistributedProblem problem(one, 11);
    const Shards shards = *Shards::zigzag(problem.what().q_len, 4);
    for (const RunOptions& options : std::initializer_list<RunOptions>{
             {.exchange = Exchange::ring},
             {.exchange = Exchange::all_gather, .gathered_bytes = ~0u},
             {.exchange = Exchange::all_gather, .gathered_bytes = 1},
             {.exchange = Exchange::ulysses},
             {.exchange = Exchange::ulysses, .ranks_per_node = 2}})
        check_same_bits(problem, shards, options, 4);
}

TEST_CASE("keys gathered in pieces of heads are those gathered at once: random problems") {
    if (!has_cpu()) return;
    const std::uint32_t seed = fresh_seed();
    std::mt19937 random(seed);
    const auto draw = [&](std::int64_t least, std::int64_t most) {
        return std::uniform_int_distribution<std::int64_t>(least, most)(random);
    };
    struct Program {
        const char* text;
        std::vector<ShardedBuffer> sharded = {};
    };
    const Program programs[] = {
        // What is of a head, in the mask, the score, the sink and buffers, and the number of heads.
        {"buffer slopes: f32[H] grad\nscore_mod = score + slopes[h] * (kv_idx - q_idx) / H\n"
         "mask_mod = -9 * h_kv <= q_idx - kv_idx < 15 * (h + 1)"},
        {"buffer table: f32[32, H_KV] grad\n"
         "score_mod = score + table[clamp(q_idx - kv_idx + 16, 0, 31), h_kv]"},
        {"buffer s: f32[H] grad\nsink = s[h] + 0.1 * h\nmask_mod = q_idx >= kv_idx"},
        {"buffer bias: f32[H, Q_LEN, KV_LEN] grad\nscore_mod = score + bias[h, q_idx, kv_idx]\n"
         "mask_mod = q_idx >= kv_idx",
         {{"bias", "Q_LEN"}}},
        {"buffer keys: f32[H, KV_LEN] grad\nbuffer gate: f32[Q_LEN, H] grad\n"
         "score_mod = score * (1 + gate[q_idx, h]) + keys[h, kv_idx]",
         {{"keys", "KV_LEN"}, {"gate", "Q_LEN"}}},
    };
    for (int run = 0; run < 20; ++run) {
        const Program& program = programs[run % 5];
        DistributedCase one{.text = program.text, .batch = draw(1, 2), .kv_heads = draw(2, 5)};
        one.heads = one.kv_heads * draw(1, 3);
        one.q_len = draw(20, 70);
        one.kv_len = draw(20, 70);
        one.head_dim_v = run % 2 == 0 ? 8 : 16;
        one.dtype = draw(0, 2) == 0 ? DType::bf16 : DType::f32;
        one.sharded = program.sharded;
        one.with_d_lse = draw(0, 1) == 0;
        const int ranks = static_cast<int>(draw(2, 4));
        CAPTURE(run);
        CAPTURE(ranks);
        CAPTURE(one.kv_heads);
        CAPTURE(one.heads);
        const DistributedProblem problem(one, seed + static_cast<std::uint32_t>(run));
        const Outcome alone = problem.on_one_rank();
        const auto whole =
            static_cast<std::uint64_t>(one.batch * one.kv_heads * one.kv_len) * 24 * 4;
        for (const auto& sharding : shardings(one.q_len, one.kv_len, ranks))
            for (const std::uint64_t bytes : {std::uint64_t{1}, whole / 2, whole}) {
                CAPTURE(sharding.name);
                CAPTURE(bytes);
                const Outcome many =
                    problem.on_ranks(sharding.queries, sharding.keys,
                                     {.exchange = Exchange::all_gather, .gathered_bytes = bytes});
                const std::string differences = compare(problem, many, alone);
                CHECK_MESSAGE(differences.empty(), differences);
            }
    }
}

TEST_CASE("pieces of heads: how many, when, what they say, and ranks that differ in them") {
    if (!has_cpu()) return;
    DistributedCase one{.text = "mask_mod = true", .batch = 1, .heads = 10, .kv_heads = 5};
    one.q_len = one.kv_len = 96;
    const DistributedProblem problem(one, 1);
    const Shards shards = *Shards::contiguous(96, 3);
    // Of 64 keys that come, k and v of 8 f32 each.
    constexpr std::uint64_t kHead = 64 * 16 * 4;
    const auto plan = [&](Exchange exchange, std::uint64_t bytes, std::uint64_t of_last) {
        auto communicators = *in_process_communicators(3);
        std::vector<Result<DistributedPlan>> plans(3, Result<DistributedPlan>(Error{}));
        std::vector<std::thread> threads;
        for (std::size_t rank = 0; rank < 3; ++rank)
            threads.emplace_back([&, rank] {
                plans[rank] = problem.distributed().plan(
                    {.batch = 1, .heads = 10, .kv_heads = 5, .queries = shards, .keys = shards},
                    communicators[rank], {},
                    {.exchange = exchange, .gathered_bytes = rank == 2 ? of_last : bytes});
            });
        for (std::thread& thread : threads)
            thread.join();
        return plans;
    };
    struct Row {
        Exchange asked;
        std::uint64_t bytes;
        Exchange got;
        std::int64_t pieces;
        const char* why;
    };
    const Row rows[] = {
        {Exchange::all_gather, 5 * kHead, Exchange::all_gather, 1,
         "exchange: all_gather, as asked for; gathered keys and values take 20480 bytes on a rank, "
         "no more than 20480\n"},
        // Two pieces of 3 and 2 heads would have 6 heads of keys at a time.
        {Exchange::all_gather, 5 * kHead - 1, Exchange::all_gather, 3, " in 3 pieces of heads"},
        {Exchange::all_gather, 2 * kHead, Exchange::all_gather, 5, "no more than 8192"},
        {Exchange::all_gather, 2 * kHead - 1, Exchange::all_gather, 5, "more than 8191"},
        {Exchange::automatic, 4 * kHead, Exchange::all_gather, 3,
         "in 3 pieces of heads, no more than 16384, and 3 launches beside 3 of a ring\n"
         "step 0: 96 keys of ranks [0, 1, 2], heads 0 to 1 of them, 1 launches\n"
         "step 1: 96 keys of ranks [0, 1, 2], heads 1 to 3 of them, 1 launches\n"},
        {Exchange::automatic, 3 * kHead, Exchange::ring, 3,
         "5 pieces of heads, no more than 12288, and 5 launches beside 3 of a ring"},
        {Exchange::automatic, kHead, Exchange::ring, 3, ", more than 4096"},
    };
    for (const Row& row : rows) {
        CAPTURE(row.bytes);
        const auto plans = plan(row.asked, row.bytes, row.bytes);
        REQUIRE_MESSAGE(plans[1].has_value(), plans[1].error().message);
        CHECK(plans[1]->exchange() == row.got);
        CHECK(plans[1]->traffic().pieces == row.pieces);
        CHECK_MESSAGE(plans[1]->explain().find(row.why) != std::string::npos, plans[1]->explain());
        CHECK(plans[1]->traffic().forward_received == 5 * kHead);
        CHECK(plans[1]->traffic().backward_received == 5 * kHead + 5 * kHead); // and of own keys
    }
    const auto differ = plan(Exchange::all_gather, 5 * kHead, 2 * kHead);
    for (const auto& one_plan : differ) {
        REQUIRE(!one_plan);
        CHECK(one_plan.error().message == "rank 2 has an exchange or a reduction that rank 0 does "
                                          "not have: all ranks of a call must have the same");
    }
}

TEST_CASE("a plan says how it exchanges, what travels and how even the work is") {
    if (!has_cpu()) return;
    DistributedCase one = case_of(kMods[0].second, kMasks[1].second);
    one.q_len = one.kv_len = 96; // so that tiles end where shards do
    const DistributedProblem problem(one, 1);
    auto communicators = *in_process_communicators(2);
    const Shards shards = *Shards::contiguous(problem.what().q_len, 2);
    std::vector<Result<DistributedPlan>> plans(2, Result<DistributedPlan>(Error{}));
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < 2; ++rank)
        threads.emplace_back([&, rank] {
            plans[rank] = problem.distributed().plan(
                {.batch = 1, .heads = 2, .kv_heads = 1, .queries = shards, .keys = shards},
                communicators[rank]);
        });
    for (std::thread& thread : threads)
        thread.join();
    REQUIRE(plans[0]);
    REQUIRE(plans[1]);
    CHECK(plans[0]->exchange() == Exchange::all_gather);
    CHECK(plans[0]->explain().starts_with("exchange: all_gather, because gathered keys"));
    const Traffic first = plans[0]->traffic(), second = plans[1]->traffic();
    CHECK(first.forward_received == 0);
    CHECK(second.forward_sent == 0);
    CHECK(second.forward_received == 48 * 16 * 4); // keys of rank 0, k and v of 8 f32 each
    CHECK(second.forward_received == first.forward_sent);
    CHECK(second.backward_sent == first.backward_received);
    CHECK(second.backward_sent == 48 * 16 * 4);
    CHECK(first.visible_area < second.visible_area);
    CHECK(first.fair_area == doctest::Approx((first.visible_area + second.visible_area) / 2));
}

TEST_CASE("heads that are dealt unevenly, and to more ranks than there are") {
    if (!has_cpu()) return;
    for (int ranks = 1; ranks <= 9; ++ranks)
        for (const std::int64_t kv_heads : {1, 2, 3, 6}) {
            constexpr std::int64_t kHeads = 6;
            std::int64_t next = 0;
            for (int rank = 0; rank < ranks; ++rank) {
                const auto share = distributed::head_share(kHeads, kv_heads, ranks, rank);
                CHECK(share.heads.begin == next);
                for (const distributed::HeadBlock& block : share.blocks) {
                    CHECK(block.heads.begin == next);
                    next = block.heads.end;
                    const std::int64_t group = kHeads / kv_heads;
                    CHECK(block.heads.count() % block.kv_heads.count() == 0);
                    for (std::int64_t head = block.heads.begin; head < block.heads.end; ++head)
                        CHECK(head / group == block.kv_heads.begin + (head - block.heads.begin) /
                                                                         (block.heads.count() /
                                                                          block.kv_heads.count()));
                    CHECK(share.kv_heads.begin <= block.kv_heads.begin);
                    CHECK(block.kv_heads.end <= share.kv_heads.end);
                }
                CHECK(share.heads.end == next);
            }
            CHECK(next == kHeads);
        }
    DistributedCase one = case_of("buffer s: f32[H] grad\n"
                                  "score_mod = score + s[h] * kv_idx * 0.05 + h_kv + H_KV - H\n"
                                  "sink = s[h] * 2",
                                  "mask_mod = q_idx + 3 * h >= kv_idx");
    one.heads = 6;
    one.kv_heads = 2;
    one.batch = 2;
    const DistributedProblem problem(one, fresh_seed());
    const Outcome alone = problem.on_one_rank();
    for (const int ranks : {2, 4, 7}) {
        CAPTURE(ranks);
        const Shards shards = *Shards::zigzag(one.q_len, ranks);
        const std::string differences = compare(
            problem, problem.on_ranks(shards, shards, {.exchange = Exchange::ulysses}), alone);
        CHECK_MESSAGE(differences.empty(), differences);
    }
}

// The table of docs/distributed.md: --no-skip -tc="table*".
TEST_CASE("table: errors by ranks" * doctest::skip()) {
    std::string text;
    for (const DType dtype : {DType::f32, DType::bf16}) {
        DistributedCase one = case_of(kMods[1].second, kMasks[1].second);
        one.dtype = dtype;
        one.q_len = one.kv_len = 512;
        one.head_dim = one.head_dim_v = 32;
        const DistributedProblem problem(one, 1993);
        const auto row = [&](const std::string& label, const Outcome& outcome) {
            const auto errors = problem.errors(outcome);
            text += formatted("| {} | {} |", name(dtype), label);
            for (const char* tensor : {"o", "dq", "dk", "dv", "d.slopes"})
                text += formatted(" {:.2e} |", errors.at(tensor));
            text += "\n";
        };
        row("one rank", problem.on_one_rank());
        for (const int ranks : {2, 4, 8})
            for (const Exchange exchange :
                 {Exchange::ring, Exchange::all_gather, Exchange::ulysses}) {
                const Shards shards = *Shards::zigzag(one.q_len, ranks);
                row(formatted("{} of {}", name(exchange), ranks),
                    problem.on_ranks(shards, shards, {.exchange = exchange}));
            }
    }
    MESSAGE("\n" << text);
}

TEST_CASE("an error of few elements counts if many draws have it") {
    if (!has_cpu()) return;
    const DistributedProblem problem(
        {.text = "buffer s: f32[H] grad\nscore_mod = score + s[h] * kv_idx * 0.1"}, fresh_seed());
    const Shards shards = *Shards::contiguous(problem.what().q_len, 2);
    const Run one = [](const DistributedProblem& drawn) { return drawn.on_one_rank(); };
    for (const bool always : {false, true}) {
        const std::string differences = compare_runs(
            problem,
            [&](const DistributedProblem& drawn) {
                Outcome outcome = drawn.on_ranks(shards, shards);
                if (always || &drawn == &problem)
                    for (double& value : outcome.d_buffers.at("s"))
                        value *= 1.01;
                return outcome;
            },
            one);
        CHECK(differences.starts_with("d.s: relative error of 24 draws") == always);
        CHECK(differences.empty() == !always);
    }
}
