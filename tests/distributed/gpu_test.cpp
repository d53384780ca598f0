// Many ranks on one GPU against one rank on it, by the definition in double: each rank is a thread
// with streams of its own.
#include <doctest/doctest.h>

#include <atomic>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "distributed/matrix.h"
#include "distributed/on_device.h"
#include "distributed/problem.h"

using namespace flexc;
using namespace flexc::test;

namespace {

// Of the generic kernels.
DistributedCase small(DistributedCase one) {
    one.device = Device::cuda();
    one.head_dim = one.head_dim_v = 16;
    return one;
}
// Of those for tensors that TMA can walk, where the GPU has them.
DistributedCase large(DistributedCase one) {
    one.device = Device::cuda();
    one.dtype = DType::bf16;
    one.head_dim = one.head_dim_v = 64;
    one.heads = 4;
    one.kv_heads = 2;
    one.q_len = one.kv_len = 330;
    for (auto& [name, rule] : one.integers)
        if (name == "doc") rule = [](std::int64_t i) { return i / 83; };
    return one;
}

using Problems = std::vector<std::unique_ptr<DistributedProblem>>;

// Compiled side by side.
Problems problems_of(const std::vector<DistributedCase>& cases, std::uint32_t seed) {
    Problems problems(cases.size());
    std::atomic<std::size_t> next = 0;
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i)
        threads.emplace_back([&] {
            for (std::size_t at = next++; at < cases.size(); at = next++)
                problems[at] = std::make_unique<DistributedProblem>(cases[at], seed);
        });
    threads.clear();
    return problems;
}

void check_all(const std::vector<DistributedCase>& cases, std::initializer_list<int> ranks,
               const RunOptions& options = {}) {
    for (const auto& problem : problems_of(cases, fresh_seed())) {
        CAPTURE(problem->what().text);
        CAPTURE(name(problem->what().dtype));
        CAPTURE(problem->what().head_dim);
        check_shardings(*problem, ranks, options);
    }
}

DistributedCase of(const std::string& mod, const std::string& mask) { return case_of(mod, mask); }

} // namespace

TEST_CASE("gpu: a mod and a mask in every exchange, generic kernels and Hopper's") {
    if (!has_gpu()) return;
    const DistributedCase one = of(kMods[1].second, kMasks[1].second);
    check_all({small(one), large(one)}, {1, 2, 3});
}

TEST_CASE("gpu: every mask with every mod, generic kernels" * doctest::skip()) {
    if (!has_gpu()) return;
    std::vector<DistributedCase> cases;
    for (const auto& mask : kMasks)
        for (const auto& mod : kMods)
            cases.push_back(small(of(mod.second, mask.second)));
    check_all(cases, {2, 3});
}

TEST_CASE("gpu: every mask with every mod, Hopper's kernels" * doctest::skip()) {
    if (!has_gpu()) return;
    std::vector<DistributedCase> cases;
    for (const auto& mask : kMasks)
        for (const auto& mod : kMods)
            cases.push_back(large(of(mod.second, mask.second)));
    check_all(cases, {2, 4});
}

TEST_CASE("gpu: types, batches, heads of values, outputs in their own type, the gradient of lse") {
    if (!has_gpu()) return;
    std::vector<DistributedCase> cases;
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        DistributedCase one = small(of(kMods[1].second, kMasks[1].second));
        one.batch = 2;
        one.heads = 4;
        one.kv_heads = 2;
        one.q_len = 61;
        one.kv_len = 83;
        one.head_dim_v = 32;
        one.with_d_lse = true;
        one.dtype = dtype;
        cases.push_back(one);
    }
    check_all(cases, {3, 8});
    for (const DistributedCase& one : cases)
        check_all({one}, {3}, {.o_type = one.dtype});
}

TEST_CASE("gpu: sinks enter once, and learn once") {
    if (!has_gpu()) return;
    // A sink of its own for each row: errors of some hundred gradients are alike on one rank and on
    // many, where those of one for each head, a sum of rows that cancel, would be chance.
    std::vector<DistributedCase> cases, of_heads;
    const auto add = [](std::vector<DistributedCase>& to, const char* sink) {
        DistributedCase one = of(sink, kMasks[2].second);
        one.with_d_lse = true;
        to.push_back(small(one));
        to.push_back(large(one));
    };
    for (const char* sink :
         {"buffer t: f32[H, Q_LEN] grad\nsink = t[h, q_idx] + 1",
          "buffer t: f32[H, Q_LEN] grad\nscore_mod = score + t[h, kv_idx]\nsink = t[h, q_idx]",
          "buffer t: f32[H, Q_LEN] grad\nsink = where(q_idx % 3 == 0, -inf, t[h, q_idx])"})
        add(cases, sink);
    check_all(cases, {1, 3});
    add(of_heads, kSinkOfHeadAndRow);
    for (const auto& problem : problems_of(of_heads, fresh_seed()))
        check_sums_of_sinks(*problem, 3);
}

TEST_CASE("gpu: buffers sharded along queries or keys") {
    if (!has_gpu()) return;
    std::vector<DistributedCase> cases;
    for (const ShardedText& program : kShardedPrograms) {
        DistributedCase one = of(program.text, kMasks[1].second);
        one.sharded = program.sharded;
        cases.push_back(small(one));
        cases.push_back(large(one));
    }
    check_all(cases, {1, 3});
}

TEST_CASE("gpu: gradients of buffers in their own type, summed and averaged") {
    if (!has_gpu()) return;
    DistributedCase one =
        small(of("buffer table: bf16[32, H] grad\n"
                 "score_mod = score + table[clamp(q_idx - kv_idx + 16, 0, 31), h]",
                 ""));
    one.gradient_type = GradientType::buffer;
    const DistributedProblem problem(one, fresh_seed());
    const Shards shards = *Shards::contiguous(one.q_len, 3);
    CHECK(compare(problem, problem.on_ranks(shards, shards), problem.on_one_rank()) == "");
    const Outcome sum = problem.on_ranks(shards, shards);
    const Outcome average =
        problem.on_ranks(shards, shards, {.reduction = GradientReduction::average});
    REQUIRE(average.error == "");
    for (std::size_t i = 0; i < sum.d_buffers.at("table").size(); ++i)
        CHECK(average.d_buffers.at("table")[i] * 3 ==
              doctest::Approx(sum.d_buffers.at("table")[i]).epsilon(0.01));
}

TEST_CASE("gpu: heads swapped inside nodes, keys gathered in pieces of heads") {
    if (!has_gpu()) return;
    DistributedCase one = of("buffer s: f32[H] grad\n"
                             "score_mod = score + s[h] * kv_idx * 0.01 + h_kv + H_KV - H\n"
                             "sink = s[h] * 2",
                             "mask_mod = q_idx + 3 * h >= kv_idx");
    for (const auto& problem : problems_of({small(one), large(one)}, fresh_seed())) {
        const Outcome alone = problem->on_one_rank();
        const Shards shards = *Shards::zigzag(problem->what().q_len, 4);
        for (const RunOptions& options : std::initializer_list<RunOptions>{
                 {.exchange = Exchange::ulysses, .ranks_per_node = 2},
                 {.exchange = Exchange::all_gather, .gathered_bytes = 1}}) {
            CAPTURE(name(options.exchange));
            const std::string differences = compare_runs(
                *problem,
                [&](const DistributedProblem& drawn) {
                    return drawn.on_ranks(shards, shards, options);
                },
                [&](const DistributedProblem& drawn) {
                    return &drawn == problem.get() ? alone : drawn.on_one_rank();
                });
            CHECK_MESSAGE(differences.empty(), differences);
        }
    }
}

TEST_CASE("gpu: the same bits, whatever the timing") {
    if (!has_gpu()) return;
    DistributedCase one = of(kMods[5].second, kMasks[1].second);
    one.heads = 4;
    one.kv_heads = 2;
    one.deterministic = true;
    for (const auto& problem : problems_of({small(one), large(one)}, 11)) {
        const Shards shards = *Shards::zigzag(problem->what().q_len, 4);
        for (const RunOptions& options : std::initializer_list<RunOptions>{
                 {.exchange = Exchange::ring},
                 {.exchange = Exchange::all_gather, .gathered_bytes = ~0u},
                 {.exchange = Exchange::all_gather, .gathered_bytes = 1},
                 {.exchange = Exchange::ulysses},
                 {.exchange = Exchange::ulysses, .ranks_per_node = 2}})
            check_same_bits(*problem, shards, options, 4);
    }
}
