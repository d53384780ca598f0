// Ragged tensors over ranks: each rank holds ranges of packed rows, wherever requests begin and
// end. Against the definition in double, as close as the ragged kernel on one rank.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "distributed/matrix.h"
#include "distributed/on_device.h"
#include "distributed/problem.h"

using namespace flexc;
using namespace flexc::test;

namespace {

using Texts = std::vector<std::string>;

// Queries and keys of the same requests, one of them empty.
RaggedCase self() { return {{0, 31, 31, 70, 71, 120}, {0, 31, 31, 70, 71, 120}}; }
// Other lengths of queries than of keys: none, fewer and more.
RaggedCase cross() { return {{0, 31, 31, 70, 71, 120}, {0, 12, 40, 40, 101, 150}}; }

DistributedCase case_of(const std::string& text, RaggedCase ragged) {
    DistributedCase one{.text = text};
    one.q_len = ragged.cu_seqlens_q.back();
    one.kv_len = ragged.cu_seqlens_k.back();
    one.dims = {{"TOTAL_Q", one.q_len}, {"TOTAL_K", one.kv_len}};
    one.ragged = std::move(ragged);
    return one;
}

// Positions, requests, lengths and rows, as a mod may read them.
const Texts kTexts = {
    "score_mod = score",
    "mask_mod = q_idx >= kv_idx",
    "mask_mod = 0 <= q_idx - kv_idx < 13",
    "buffer slopes: f32[H] grad\nscore_mod = score + slopes[h] * (kv_idx - q_idx) * 0.1\n"
    "mask_mod = q_idx >= kv_idx",
    "buffer table: f32[32, H] grad\n"
    "score_mod = score + table[clamp(q_idx - kv_idx + 16, 0, 31), h]",
    "buffer t: f32[B] grad\nscore_mod = score * t[b] + t[b] + 0.1 * B",
    "buffer keys: f32[B, H, KV_LEN] grad\nscore_mod = score + keys[b, h, kv_idx]",
    "buffer gate: f32[B, Q_LEN] grad\nscore_mod = score * (1 + gate[b, q_idx])",
    "buffer bias: f32[H, Q_LEN, KV_LEN] grad\nscore_mod = score + bias[h, q_idx, kv_idx]",
    "buffer x: f32[TOTAL_Q] grad\nbuffer y: f32[TOTAL_K, 2] grad\n"
    "score_mod = score + x[q_row] * sum(i in 0..2: y[kv_row, i])",
    "buffer lens: i32[B]\nmask_mod = kv_idx < lens[b] or q_idx >= kv_idx",
    "score_mod = score * (1 + Q_LEN / (1 + KV_LEN))\nmask_mod = kv_idx < KV_LEN // 2 or q_idx >= "
    "kv_idx",
    "mask_mod = (q_idx * 31 + kv_idx * 17) % 5 == 0",
    "score_mod = score + sum(i in 0..Q_LEN: 0.01 * i) - sum(i in 0..min(KV_LEN, 5): 0.1 * kv_idx) "
    "+ sum(i in 0..H: 0.1 * i)",
    "buffer s: f32[B, H] grad\nsink = s[b, h] + q_idx * 0.01\nmask_mod = q_idx >= kv_idx",
};

// Of a rank for each of `lengths`.
std::vector<Result<DistributedPlan>> plan_all(const DistributedProblem& problem,
                                              const Shards& shards,
                                              const std::vector<RaggedCase>& lengths) {
    auto communicators = in_process_communicators(shards.ranks());
    REQUIRE(communicators);
    std::vector<Result<DistributedPlan>> plans(lengths.size(), DistributedPlan());
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < lengths.size(); ++rank)
        threads.emplace_back([&, rank] {
            plans[rank] = problem.distributed().plan(
                problem.sizes(shards, shards), (*communicators)[rank], problem.buffers(),
                {.exchange = Exchange::ring, .lengths = lengths[rank].lengths()});
        });
    threads.clear();
    return plans;
}

} // namespace

TEST_CASE("ragged: every exchange has what one rank has") {
    const std::uint32_t seed = fresh_seed();
    for (const std::string& text : kTexts)
        for (const RaggedCase& ragged : {self(), cross()}) {
            CAPTURE(text);
            CAPTURE(ragged.cu_seqlens_k[1]);
            check_shardings(DistributedProblem(case_of(text, ragged), seed), {1, 3});
        }
}

TEST_CASE("ragged: groups of heads, types, the gradient of lse, queries that end with the keys") {
    const std::uint32_t seed = fresh_seed();
    for (const DType dtype : {DType::f32, DType::bf16}) {
        DistributedCase one = case_of(kTexts[3], cross());
        one.dtype = dtype;
        one.heads = 4;
        one.kv_heads = 2;
        one.head_dim_v = 16;
        one.with_d_lse = true;
        one.ragged->query_start = QueryStart::end;
        check_shardings(DistributedProblem(one, seed), {2, 4});
        check_shardings(DistributedProblem(one, seed), {3}, {.gathered_bytes = 1});
    }
}

TEST_CASE("ragged: rows that a request has and does not use") {
    const std::uint32_t seed = fresh_seed();
    for (const std::string& text : {kTexts[3], kTexts.back()})
        for (RaggedCase ragged : {self(), cross()}) {
            CAPTURE(text);
            ragged.seqused_q = {20, 0, 39, 1, 11};
            ragged.seqused_k = {12, 0, 0, 1, 30};
            check_shardings(DistributedProblem(case_of(text, ragged), seed), {1, 3});
        }
}

TEST_CASE("ragged: rows of nobody are like those that a request does not use") {
    DistributedCase one = case_of(kTexts.back(), {{3, 31, 60}, {0, 40, 41}});
    one.q_len = 70;
    one.kv_len = 50;
    const DistributedProblem problem(one, fresh_seed());
    for (const Exchange exchange : {Exchange::ring, Exchange::ulysses}) {
        const Outcome outcome = problem.on_ranks(*Shards::zigzag(70, 3), *Shards::contiguous(50, 3),
                                                 {.exchange = exchange});
        REQUIRE(outcome.error == "");
        CHECK(problem.compare_lse(outcome) == "");
        for (const auto& [name, error] : problem.errors(outcome)) {
            CAPTURE(name);
            CHECK(error < 2e-6);
        }
    }
}

TEST_CASE("ragged: what is of other requests neither travels nor is computed with") {
    const RaggedCase even{{0, 64, 128, 192, 256}, {0, 64, 128, 192, 256}};
    const DistributedProblem problem(case_of(kTexts[0], even), 1);
    const Shards shards = *Shards::contiguous(256, 4);
    for (const auto& plan : plan_all(problem, shards, {even, even, even, even})) {
        REQUIRE_MESSAGE(plan.has_value(), plan.error().message);
        CHECK(plan->traffic().forward_received == 0);
        CHECK(plan->traffic().visible_area == 64 * 64);
    }
    const auto balanced = problem.distributed().balanced_shards(
        {.batch = 4, .heads = 2, .kv_heads = 1, .q_len = 256, .kv_len = 256}, 4, {},
        {.lengths = even.lengths()});
    REQUIRE_MESSAGE(balanced.has_value(), balanced.error().message);
    for (int rank = 0; rank < 4; ++rank) {
        CHECK(balanced->rows(rank) == 64);
        CHECK(balanced->ranges(rank).size() == 1); // contiguous is even
    }
}

TEST_CASE(
    "ragged: documents of unlike lengths are dealt by what they see, where zigzag is uneven") {
    const RaggedCase unlike{{0, 2304, 2432, 2560, 3072}, {0, 2304, 2432, 2560, 3072}};
    DistributedCase one = case_of(kTexts[1], unlike);
    one.backward = false;
    const DistributedProblem problem(one, 1);
    const auto balanced = problem.distributed().balanced_shards(
        {.batch = 4, .heads = 2, .kv_heads = 1, .q_len = 3072, .kv_len = 3072}, 3, {},
        {.lengths = unlike.lengths()});
    REQUIRE_MESSAGE(balanced.has_value(), balanced.error().message);
    const auto most = [&](const Shards& shards, const char* dealt) {
        double share = 0;
        for (const auto& plan : plan_all(problem, shards, {unlike, unlike, unlike})) {
            REQUIRE_MESSAGE(plan.has_value(), plan.error().message);
            CHECK_MESSAGE(plan->explain().find(dealt) != std::string::npos, plan->explain());
            share = std::max(share, plan->traffic().visible_area / plan->traffic().fair_area);
        }
        return share;
    };
    CHECK(most(*balanced, "shards: balanced by what the mask shows\n") < 1.05);
    CHECK(most(*Shards::zigzag(3072, 3), "shards: zigzag\n") > 1.2);
}

TEST_CASE("ragged: what cannot be right is refused") {
    const DistributedProblem problem(case_of(kTexts[6], self()), 1);
    const DistributedKernel& kernel = problem.distributed();
    auto communicators = in_process_communicators(1);
    REQUIRE(communicators);
    const auto refusal = [&](std::int64_t batch, std::int64_t rows, const Lengths& lengths) {
        const Shards shards = *Shards::contiguous(rows, 1);
        const auto plan = kernel.plan(
            {.batch = batch, .heads = 2, .kv_heads = 1, .queries = shards, .keys = shards},
            communicators->front(), problem.buffers(), {.lengths = lengths});
        return plan ? std::string() : plan.error().message;
    };
    const RaggedCase fine = self();
    CHECK(refusal(5, 120, fine.lengths()) == "");
    CHECK(refusal(0, 120, fine.lengths()) == "batch is 0: at least one request");
    CHECK(refusal(5, 120, {}).find("cu_seqlens_q") != std::string::npos);
    CHECK(refusal(4, 120, fine.lengths()).find("cu_seqlens_q") != std::string::npos);
    CHECK(refusal(5, 119, fine.lengths()) ==
          "cu_seqlens_q ends at 120; the shards of queries have 119 rows");
    Lengths there = fine.lengths();
    there.on_device = true;
    CHECK(refusal(5, 120, there).find("lengths in host memory") != std::string::npos);
    RaggedCase longer = self();
    longer.cu_seqlens_k = longer.cu_seqlens_q = {0, 51, 51, 70, 71, 120};
    CHECK(refusal(5, 120, longer.lengths()) == "the buffers' KV_LEN is 49; a request has 51 keys");

    // Tensors of a call have the shape of ragged ones.
    const Shards shards = *Shards::contiguous(120, 1);
    const auto plan = kernel.plan(problem.sizes(shards, shards), communicators->front(),
                                  problem.buffers(), {.lengths = fine.lengths()});
    REQUIRE(plan);
    std::vector<float> data(120 * 2 * 8);
    const TensorView q = TensorView::contiguous(data.data(), DType::f32, {1, 2, 120, 8});
    const auto done = kernel.forward(*plan, {q, q, q, q, {}}, problem.buffers());
    REQUIRE(!done);
    CHECK(done.error().message == "q: expected shape [120, 2, 8], got [1, 2, 120, 8]");

    const LengthTensors own;
    ForwardTensors with_lengths{q, q, q, q, {}};
    with_lengths.lengths = &own;
    const auto refused = kernel.forward(*plan, with_lengths, problem.buffers());
    REQUIRE(!refused);
    CHECK(refused.error().message == "lengths: across ranks, they are given to the plan");
    const DistributedProblem dense({.text = "score"}, 1);
    const Shards rows = *Shards::contiguous(90, 1);
    const auto of_dense = dense.distributed().plan(dense.sizes(rows, rows), communicators->front(),
                                                   {}, {.lengths = fine.lengths()});
    REQUIRE(!of_dense);
    CHECK(of_dense.error().message == "lengths are of ragged layouts: compile for these");

    CompileOptions options;
    options.head_dim = 8;
    options.query_layout = Layout::ragged;
    const auto message = [&] {
        const auto compiled = compile_distributed("score", options);
        return compiled ? std::string() : compiled.error().message;
    };
    CHECK(message() == "attention across ranks is of queries and keys that are both dense or both "
                       "ragged, not of ragged queries and dense keys");
    options.key_layout = Layout::paged;
    CHECK(message().find("not of ragged queries and paged keys") != std::string::npos);
    options.key_layout = Layout::ragged;
    options.sharded = {{"t", "KV_LEN"}};
    const auto sharded = compile_distributed("buffer t: f32[KV_LEN]\nscore + t[kv_idx]", options);
    REQUIRE(!sharded);
    CHECK(sharded.error().message.find("only dense layouts have shards") != std::string::npos);
}

TEST_CASE("ragged: ranks with other lengths get an error each") {
    const DistributedProblem problem(case_of(kTexts[1], self()), 1);
    RaggedCase other = self();
    other.cu_seqlens_k = other.cu_seqlens_q = {0, 30, 31, 70, 71, 120};
    for (const auto& plan : plan_all(problem, *Shards::contiguous(120, 2), {self(), other})) {
        REQUIRE(!plan);
        CHECK(plan.error().message.starts_with("rank 1 has lengths that rank 0 does not have"));
    }
}

TEST_CASE("gpu: ragged tensors, generic kernels and Hopper's") {
    if (!has_gpu()) return;
    const std::uint32_t seed = fresh_seed();
    for (const std::size_t which : {std::size_t{3}, std::size_t{6}, kTexts.size() - 1})
        for (const RaggedCase& ragged : {self(), cross()}) {
            CAPTURE(kTexts[which]);
            DistributedCase one = case_of(kTexts[which], ragged);
            one.device = Device::cuda();
            one.head_dim = one.head_dim_v = 16;
            check_shardings(DistributedProblem(one, seed), {1, 3});
            one.dtype = DType::bf16;
            one.head_dim = one.head_dim_v = 64;
            check_shardings(DistributedProblem(one, seed), {1, 3});
        }
}
