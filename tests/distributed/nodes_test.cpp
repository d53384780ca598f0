// Heads swapped inside nodes, keys across them by ring, against one rank and the definition.
#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

#include "cpu_options.h"
#include "distributed/problem.h"
#include "fresh_seed.h"

using namespace flexc;
using namespace flexc::test;

namespace {

struct Nodes {
    int ranks, ranks_per_node;
};
constexpr Nodes kNodes[] = {{4, 2}, {6, 2}, {6, 3}};

// The second has shares of all lengths, empty ones too, out of order, other for keys than queries.
std::vector<std::pair<Shards, Shards>> layouts(const DistributedCase& one, int ranks) {
    std::vector<std::pair<Shards, Shards>> all = {
        {*Shards::zigzag(one.q_len, ranks), *Shards::zigzag(one.kv_len, ranks)}};
    std::vector<std::vector<RowRange>> queries(static_cast<std::size_t>(ranks)),
        keys(static_cast<std::size_t>(ranks));
    const auto last = static_cast<std::size_t>(ranks - 1);
    queries[0] = {{one.q_len / 2, one.q_len}, {0, one.q_len / 3}};
    queries[2] = {{one.q_len / 3, one.q_len / 2}};
    keys[last] = {{one.kv_len - 7, one.kv_len}, {0, one.kv_len / 2}};
    keys[1] = {{one.kv_len / 2, one.kv_len - 7}};
    all.emplace_back(*Shards::of(one.q_len, queries), *Shards::of(one.kv_len, keys));
    return all;
}

void check_nodes(const DistributedCase& one, std::uint32_t seed) {
    const DistributedProblem problem(one, seed);
    const Outcome alone = problem.on_one_rank();
    for (const auto& [ranks, ranks_per_node] : kNodes)
        for (const auto& [queries, keys] : layouts(one, ranks)) {
            CAPTURE(ranks);
            CAPTURE(ranks_per_node);
            CAPTURE(queries.rows(1));
            const Outcome many = problem.on_ranks(
                queries, keys, {.exchange = Exchange::ulysses, .ranks_per_node = ranks_per_node});
            const std::string differences = compare(problem, many, alone);
            CHECK_MESSAGE(differences.empty(), differences);
        }
}

// Plans of all ranks together.
std::vector<Result<DistributedPlan>> plans_of(const DistributedProblem& problem,
                                              const Shards& shards,
                                              const std::vector<DistributedOptions>& options) {
    const int ranks = shards.ranks();
    auto communicators = *in_process_communicators(ranks);
    std::vector<Result<DistributedPlan>> plans(options.size(), Result<DistributedPlan>(Error{}));
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < options.size(); ++rank)
        threads.emplace_back([&, rank] {
            plans[rank] =
                problem.distributed().plan({.batch = problem.what().batch,
                                            .heads = problem.what().heads,
                                            .kv_heads = problem.what().kv_heads,
                                            .queries = shards,
                                            .keys = shards},
                                           communicators[rank], problem.buffers(), options[rank]);
        });
    for (std::thread& thread : threads)
        thread.join();
    return plans;
}

} // namespace

TEST_CASE("nodes: masks, mods, sinks and their gradients, with heads that nodes deal unevenly") {
    if (!has_cpu()) return;
    const std::uint32_t seed = fresh_seed();
    struct Heads {
        std::int64_t heads, kv_heads;
    };
    for (const char* mask :
         {"", "mask_mod = q_idx >= kv_idx", "mask_mod = 0 <= q_idx - kv_idx < 25",
          "buffer doc: i32[KV_LEN]\nmask_mod = doc[q_idx] == doc[kv_idx]",
          "mask_mod = q_idx + 3 * h >= kv_idx"})
        for (const char* mod :
             {"score_mod = score",
              "buffer slopes: f32[H] grad\nscore_mod = score + slopes[h] * (kv_idx - q_idx) * 0.1",
              "buffer bias: f32[H, Q_LEN, KV_LEN] grad\nscore_mod = score + bias[h, q_idx, kv_idx]",
              "buffer table: f32[32, H_KV] grad\n"
              "score_mod = score + table[clamp(q_idx - kv_idx + 16, 0, 31), h_kv] + H - h",
              "buffer s: f32[H] grad\nsink = s[h] * 2 + 0.1 * h"})
            for (const auto& [heads, kv_heads] : {Heads{6, 2}, Heads{5, 5}, Heads{2, 1}}) {
                CAPTURE(mask);
                CAPTURE(mod);
                CAPTURE(heads);
                DistributedCase one{.text = std::string(mod) + "\n" + mask,
                                    .heads = heads,
                                    .kv_heads = kv_heads,
                                    .q_len = 61,
                                    .kv_len = 61};
                one.integers["doc"] = [](std::int64_t i) { return i / 13; };
                check_nodes(one, seed);
            }
}

TEST_CASE("nodes: batches, narrow types, heads of values, other lengths, the gradient of lse") {
    if (!has_cpu()) return;
    const std::uint32_t seed = fresh_seed();
    for (const DType dtype : {DType::f32, DType::bf16}) {
        CAPTURE(name(dtype));
        check_nodes({.text = "buffer s: f32[H] grad\nscore_mod = score + s[h] * kv_idx * 0.05\n"
                             "mask_mod = q_idx + 20 >= kv_idx",
                     .dtype = dtype,
                     .batch = 2,
                     .heads = 4,
                     .kv_heads = 2,
                     .q_len = 61,
                     .kv_len = 83,
                     .head_dim_v = 16,
                     .with_d_lse = true},
                    seed);
    }
}

TEST_CASE("nodes: buffers sharded along queries or keys") {
    if (!has_cpu()) return;
    const std::uint32_t seed = fresh_seed();
    DistributedCase one{.text = "buffer bias: f32[H, Q_LEN, KV_LEN] grad\n"
                                "buffer keys: bf16[KV_LEN, 2] grad\nbuffer s: f32[H] grad\n"
                                "buffer gate: f32[B, Q_LEN] grad\nsink = s[h] + gate[b, q_idx]\n"
                                "score_mod = score + bias[h, q_idx, kv_idx] + keys[kv_idx, 1]\n"
                                "mask_mod = q_idx + 20 >= kv_idx",
                        .batch = 2,
                        .heads = 3,
                        .kv_heads = 1,
                        .q_len = 61,
                        .kv_len = 83};
    one.sharded = {{"bias", "Q_LEN"}, {"keys", "KV_LEN"}, {"gate", "Q_LEN"}};
    check_nodes(one, seed);
}

TEST_CASE("nodes: what a plan says and counts, and what is refused") {
    if (!has_cpu()) return;
    const DistributedProblem problem(
        {.text = "score", .heads = 4, .kv_heads = 2, .q_len = 96, .kv_len = 96}, 1);
    const Shards shards = *Shards::contiguous(96, 4);
    const DistributedOptions nodes{.exchange = Exchange::ulysses, .ranks_per_node = 2};
    Traffic all;
    for (const auto& plan : plans_of(problem, shards, {4, nodes})) {
        REQUIRE_MESSAGE(plan.has_value(), plan.error().message);
        CHECK(plan->exchange() == Exchange::ulysses);
        const Traffic& traffic = plan->traffic();
        CHECK(traffic.pieces == 2);
        CHECK(traffic.visible_area == traffic.fair_area);
        // Forward, 24 rows of two heads of q and one of k and v come from the other rank of the
        // node, o and lse of two heads of own rows come back, and 48 keys of one head come from
        // the other node: f32 of 8 columns.
        CHECK(traffic.forward_received == (24 * (2 + 2) * 8 + 24 * 2 * 9 + 48 * 2 * 8) * 4);
        CHECK(traffic.forward_sent == traffic.forward_received);
        CHECK(traffic.backward_sent == traffic.backward_received);
        CHECK(plan->explain().starts_with(
            "exchange: ulysses, as asked for\n"
            "2 nodes of 2 ranks: heads are swapped inside, keys travel across by ring\nheads "));
        CHECK(plan->explain().find("step 1: 48 keys of nodes [") != std::string::npos);
    }
    DistributedCase with_rows{.text = "buffer gate: f32[Q_LEN, 3] grad\nscore + gate[q_idx, 1]",
                              .heads = 4,
                              .kv_heads = 2,
                              .q_len = 96,
                              .kv_len = 96};
    with_rows.sharded = {{"gate", "Q_LEN"}};
    const std::uint64_t rows = 24 * 3 * 4; // of the other rank's gate, or of gradients of it
    const auto without = plans_of(problem, shards, {4, nodes});
    for (const auto& plan : plans_of(DistributedProblem(with_rows, 1), shards, {4, nodes})) {
        REQUIRE_MESSAGE(plan.has_value(), plan.error().message);
        CHECK(plan->traffic().forward_received == without[0]->traffic().forward_received + rows);
        CHECK(plan->traffic().backward_received ==
              without[0]->traffic().backward_received + 2 * rows);
        CHECK(plan->traffic().backward_sent == plan->traffic().backward_received);
    }
    const auto refused = [&](DistributedOptions first, const DistributedOptions& others) {
        std::vector<DistributedOptions> options(4, others);
        options[0] = first;
        const auto plans = plans_of(problem, shards, options);
        REQUIRE(!plans[1]);
        return plans[1].error().message;
    };
    DistributedOptions three = nodes, ring = nodes;
    three.ranks_per_node = 3;
    ring.exchange = Exchange::ring;
    CHECK(refused(three, nodes) == "rank 0: nodes of 3 ranks: the communicator has 4");
    CHECK(refused(ring, nodes) == "rank 0: ranks_per_node is for Exchange::ulysses, not ring");
    CHECK(
        refused({.exchange = Exchange::ulysses}, nodes)
            .ends_with("an exchange or a reduction that rank 0 does not have: all ranks of a call "
                       "must have the same"));
}
