#include "distributed/on_processes.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <initializer_list>
#include <utility>
#include <vector>

#include "distributed/host_sum.h"
#include "distributed/matrix.h"

namespace flexc::test {

namespace {

// Each rank has its own rows, and zeros elsewhere.
void gather(Communicator& communicator, std::vector<double>& values) {
    std::vector<float> own(values.begin(), values.end());
    for (float& value : own)
        if (std::isinf(value)) value = -1e30f; // of rows that see nothing
    REQUIRE(sum_over_ranks(communicator, own, 1));
    for (std::size_t i = 0; i < own.size(); ++i)
        values[i] = own[i] <= -1e30f ? -INFINITY : own[i];
}

bool any_of_ranks(Communicator& communicator, bool own) {
    std::vector<float> count = {own ? 1.0f : 0.0f};
    REQUIRE(sum_over_ranks(communicator, count, 1));
    return count[0] > 0;
}

Outcome on_processes(const std::shared_ptr<Communicator>& communicator,
                     const DistributedProblem& problem, const Shards& queries, const Shards& keys,
                     const RunOptions& options) {
    Outcome outcome = problem.empty_outcome(communicator->ranks());
    if (auto done = problem.on_rank(communicator, queries, keys, options, outcome); !done) {
        outcome.error = done.error().message;
        return outcome;
    }
    for (auto* values : {&outcome.o, &outcome.lse, &outcome.dq, &outcome.dk, &outcome.dv})
        gather(*communicator, *values);
    outcome.d_buffers = outcome.of_ranks[static_cast<std::size_t>(communicator->rank())];
    return outcome;
}

void check_run(const std::shared_ptr<Communicator>& communicator, const DistributedProblem& problem,
               const Outcome& alone, const Shards& queries, const Shards& keys,
               const RunOptions& options) {
    CAPTURE(name(options.exchange));
    CAPTURE(options.gathered_bytes);
    CAPTURE(options.ranks_per_node);
    const std::string differences = compare_runs(
        problem,
        [&](const DistributedProblem& drawn) {
            return on_processes(communicator, drawn, queries, keys, options);
        },
        [&](const DistributedProblem& drawn) {
            return &drawn == &problem ? alone : drawn.on_one_rank();
        },
        [&](bool own) { return any_of_ranks(*communicator, own); });
    CHECK_MESSAGE(differences.empty(), differences);
}

} // namespace

void check_processes(const std::shared_ptr<Communicator>& communicator, Device device,
                     Processes what) {
    const int ranks = communicator->ranks();
    constexpr std::array<const char*, 4> kPrograms = {
        "buffer s: f32[B, H] grad\nscore_mod = score + s[b, h] * (kv_idx - q_idx) * 0.1\n"
        "sink = s[b, 0]\nmask_mod = q_idx >= kv_idx",
        "buffer slopes: f32[H] grad\nscore_mod = score + slopes[h] * (kv_idx - q_idx) * 0.1\n"
        "mask_mod = q_idx >= kv_idx",
        "buffer doc: i32[KV_LEN]\nbuffer bias: f32[H, Q_LEN, KV_LEN] grad\n"
        "score_mod = score + bias[h, q_idx, kv_idx]\nmask_mod = doc[q_idx] == doc[kv_idx]",
        "buffer s: f32[H] grad\nsink = s[h]\nmask_mod = 0 <= q_idx - kv_idx < 25",
    };
    const char* const program = kPrograms[static_cast<std::size_t>(what)];
    CAPTURE(program);
    DistributedCase one{.text = program, .batch = 2, .heads = 4, .kv_heads = 2, .device = device};
    if (device.kind == Device::Kind::cuda) {
        one.dtype = DType::bf16;
        one.q_len = one.kv_len = 330;
        one.head_dim = one.head_dim_v = 64;
    }
    if (what == Processes::ragged) {
        const auto rows = static_cast<std::int32_t>(one.q_len);
        one.batch = 1;
        one.ragged = {{0, 20, 20, 71, rows}, {0, 20, 20, 71, rows}};
    }
    one.integers["doc"] = [](std::int64_t i) { return i / 23; };
    const DistributedProblem problem(one, 17);
    const Outcome alone = problem.on_one_rank();
    // All on one rank but the first row, for shares that are uneven and empty.
    std::vector<std::vector<RowRange>> uneven(static_cast<std::size_t>(ranks));
    uneven[0] = {{0, 1}};
    uneven[static_cast<std::size_t>(ranks - 1)].push_back({1, one.q_len});
    for (const Shards& shards : {*Shards::contiguous(one.q_len, ranks),
                                 *Shards::zigzag(one.q_len, ranks), *Shards::of(one.q_len, uneven)})
        for (const RunOptions& options : std::initializer_list<RunOptions>{
                 {.exchange = Exchange::ring},
                 {.exchange = Exchange::all_gather, .gathered_bytes = ~0u},
                 {.exchange = Exchange::all_gather, .gathered_bytes = 1},
                 {.exchange = Exchange::ulysses},
                 {.exchange = Exchange::ulysses, .ranks_per_node = ranks % 2 == 0 ? 2 : 1}})
            check_run(communicator, problem, alone, shards, shards, options);
}

void check_matrix(const std::shared_ptr<Communicator>& communicator) {
    const std::size_t ranks = static_cast<std::size_t>(communicator->ranks());
    for (std::size_t mask = 0; mask < kMasks.size(); ++mask)
        for (std::size_t mod = 0; mod < kMods.size(); ++mod) {
            // A third of them for each number of ranks: every process compiles every program.
            if ((mask + mod + ranks) % 3 != 0) continue;
            CAPTURE(kMasks[mask].first);
            CAPTURE(kMods[mod].first);
            const DistributedProblem problem(case_of(kMods[mod].second, kMasks[mask].second), 17);
            const Outcome alone = problem.on_one_rank();
            for (const Sharding& sharding :
                 shardings(problem.what().q_len, problem.what().kv_len, communicator->ranks())) {
                CAPTURE(sharding.name);
                for (const Exchange exchange :
                     {Exchange::ring, Exchange::all_gather, Exchange::ulysses})
                    check_run(communicator, problem, alone, sharding.queries, sharding.keys,
                              {.exchange = exchange});
            }
        }
}

void check_refusals(const std::shared_ptr<Communicator>& communicator, Device device) {
    if (communicator->ranks() == 1) return;
    const DistributedProblem problem({.text = "mask_mod = q_idx >= kv_idx", .device = device}, 1);
    const Shards shards = *Shards::contiguous(problem.what().q_len, communicator->ranks());
    const auto plan = [&](std::int64_t heads) {
        return problem.distributed().plan(
            {.batch = 1, .heads = heads, .kv_heads = 1, .queries = shards, .keys = shards},
            communicator);
    };
    const auto wrong = plan(communicator->rank() == 1 ? 3 : 2);
    REQUIRE(!wrong);
    CHECK(wrong.error().message == "rank 1 has sizes that rank 0 does not have: all ranks of a "
                                   "call must have the same");
    CHECK(plan(2).has_value());
}

int run_tests(Result<std::shared_ptr<Communicator>> opened,
              std::shared_ptr<Communicator>& communicator, int argc, char** argv) {
    if (!opened) {
        std::fprintf(stderr, "%s\n", opened.error().message.c_str());
        return opened.error().code == ErrorCode::library_missing ? 77 : 1;
    }
    communicator = std::move(*opened);
    doctest::Context context(argc, argv);
    const int result = context.run();
    communicator.reset();
    return result;
}

} // namespace flexc::test
