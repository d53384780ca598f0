// Ranks that are processes, by MPI: what the ranks of one process are tested for, once more. Run by
// mpirun; every rank prints what it finds, and any failure is the exit status.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <initializer_list>
#include <string>
#include <utility>

#include "distributed/collectives.h"
#include "distributed/problem.h"
#include "flexc/distributed.h"

using namespace flexc;
using namespace flexc::test;

namespace {

std::shared_ptr<Communicator> communicator; // of all ranks, for all tests

// Each rank has its own rows, and zeros elsewhere.
void gather(std::vector<double>& values) {
    std::vector<float> own(values.begin(), values.end());
    for (float& value : own)
        if (std::isinf(value)) value = -1e30f; // of rows that see nothing
    REQUIRE(distributed::all_reduce(*communicator, own, 1));
    for (std::size_t i = 0; i < own.size(); ++i)
        values[i] = own[i] <= -1e30f ? -INFINITY : own[i];
}

Outcome on_processes(const DistributedProblem& problem, const Shards& queries, const Shards& keys,
                     const RunOptions& options) {
    Outcome outcome = problem.empty_outcome(communicator->ranks());
    if (auto done = problem.on_rank(communicator, queries, keys, options, outcome); !done) {
        outcome.error = done.error().message;
        return outcome;
    }
    for (auto* values : {&outcome.o, &outcome.lse, &outcome.dq, &outcome.dk, &outcome.dv})
        gather(*values);
    outcome.d_buffers = outcome.of_ranks[static_cast<std::size_t>(communicator->rank())];
    return outcome;
}

} // namespace

TEST_CASE("exchanges, masks, mods and shards over processes") {
    const int ranks = communicator->ranks();
    const char* programs[] = {
        "buffer slopes: f32[H] grad\nscore_mod = score + slopes[h] * (kv_idx - q_idx) * 0.1\n"
        "mask_mod = q_idx >= kv_idx",
        "buffer doc: i32[KV_LEN]\nbuffer bias: f32[H, Q_LEN, KV_LEN] grad\n"
        "score_mod = score + bias[h, q_idx, kv_idx]\nmask_mod = doc[q_idx] == doc[kv_idx]",
        "buffer s: f32[H] grad\nsink = s[h]\nmask_mod = 0 <= q_idx - kv_idx < 25",
    };
    for (const char* program : programs) {
        CAPTURE(program);
        DistributedCase one{.text = program, .batch = 2, .heads = 4, .kv_heads = 2};
        one.integers["doc"] = [](std::int64_t i) { return i / 23; };
        const DistributedProblem problem(one, 17);
        const Outcome alone = problem.on_one_rank();
        // All on one rank but the first row, for shares that are uneven and empty.
        std::vector<std::vector<RowRange>> uneven(static_cast<std::size_t>(ranks));
        uneven[0] = {{0, 1}};
        uneven[static_cast<std::size_t>(ranks - 1)].push_back({1, one.q_len});
        for (const Shards& shards :
             {*Shards::contiguous(one.q_len, ranks), *Shards::zigzag(one.q_len, ranks),
              *Shards::of(one.q_len, uneven)})
            for (const RunOptions& options : std::initializer_list<RunOptions>{
                     {.exchange = Exchange::ring},
                     {.exchange = Exchange::all_gather, .gathered_bytes = ~0u},
                     {.exchange = Exchange::all_gather, .gathered_bytes = 1},
                     {.exchange = Exchange::ulysses},
                     {.exchange = Exchange::ulysses, .ranks_per_node = ranks % 2 == 0 ? 2 : 1}}) {
                CAPTURE(name(options.exchange));
                CAPTURE(options.gathered_bytes);
                CAPTURE(options.ranks_per_node);
                const std::string differences =
                    compare(problem, on_processes(problem, shards, shards, options), alone);
                CHECK_MESSAGE(differences.empty(), differences);
            }
    }
}

TEST_CASE("ranks that differ get an error each, and may go on") {
    if (communicator->ranks() == 1) return;
    const DistributedProblem problem({.text = "mask_mod = q_idx >= kv_idx"}, 1);
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

TEST_CASE("a rank that does not answer is named in time, and messages of another size are") {
    if (communicator->ranks() == 1) return;
    auto other = mpi_communicator(nullptr, {.timeout_seconds = 0.3});
    REQUIRE_MESSAGE(other.has_value(), other.error().message);
    const int rank = communicator->rank();
    int value = 0;
    if (rank == 0) {
        const Communicator::Message receive{1, &value, sizeof value};
        const auto ticket = (*other)->start(0, {}, std::span(&receive, 1), {});
        REQUIRE(ticket);
        const auto done = (*other)->wait(*ticket);
        REQUIRE(!done);
        CHECK(done.error().code == ErrorCode::io);
        CHECK(done.error().message == "rank 1 did not answer within 0.3 seconds");
    }
    char bytes[64] = {};
    if (rank == 1) {
        const Communicator::Message send{0, bytes, 8};
        const auto ticket = communicator->start(1, std::span(&send, 1), {}, {});
        REQUIRE(ticket);
        CHECK(communicator->wait(*ticket).has_value());
    }
    if (rank == 0) {
        const Communicator::Message receive{1, bytes, sizeof bytes};
        const auto ticket = communicator->start(1, {}, std::span(&receive, 1), {});
        REQUIRE(ticket);
        const auto done = communicator->wait(*ticket);
        REQUIRE(!done);
        CHECK(done.error().message == "rank 1: a message has another size than was expected");
    }
}

int main(int argc, char** argv) {
    auto opened = mpi_communicator(nullptr, {.timeout_seconds = 60});
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
