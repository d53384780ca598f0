// Ranks that are processes, by MPI: what the ranks of one process are tested for, once more. Run by
// mpirun; every rank prints what it finds, and any failure is the exit status.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <initializer_list>
#include <string>

#include "distributed/on_processes.h"
#include "flexc/distributed.h"

using namespace flexc;
using namespace flexc::test;

namespace {

std::shared_ptr<Communicator> communicator; // of all ranks, for all tests

} // namespace

TEST_CASE("exchanges, masks, mods and shards over processes") {
    for (const Processes what : {Processes::ragged, Processes::learned_slopes,
                                 Processes::learned_bias, Processes::sinks})
        check_processes(communicator, Device::cpu(), what);
}

TEST_CASE("masks with mods, in every exchange, over processes") { check_matrix(communicator); }

TEST_CASE("ranks that differ get an error each, and may go on") {
    check_refusals(communicator, Device::cpu());
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
    return run_tests(mpi_communicator(nullptr, {.timeout_seconds = 60}), communicator, argc, argv);
}
