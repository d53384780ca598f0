#include "cache/failures.h"

#include <string>

#include <doctest/doctest.h>

using namespace flexc;
using cache::Failures;

TEST_CASE("a failure is remembered for five minutes, under limits that are no wider") {
    Failures failures;
    const auto now = Failures::Clock::now();
    const Error error{ErrorCode::limit, "stopped"};
    failures.remember("1", error, {.seconds = 10, .memory_bytes = 100}, now);
    const auto found = [&](double seconds, std::uint64_t bytes, std::chrono::seconds later = {}) {
        return failures.find("1", {.seconds = seconds, .memory_bytes = bytes}, now + later)
            .has_value();
    };
    CHECK(found(10, 100));
    CHECK(found(5, 50));
    CHECK(!found(11, 100));
    CHECK(!found(10, 101));
    CHECK(!found(0, 100)); // no limit
    CHECK(!found(10, 0));
    CHECK(!failures.find("2", {.seconds = 1}, now));
    CHECK(found(10, 100, std::chrono::seconds(299)));
    CHECK(!found(10, 100, std::chrono::seconds(301)));
}

TEST_CASE("what failed without limits fails with any, and the oldest is forgotten") {
    Failures failures;
    const Error error{ErrorCode::compile_failed, "refused"};
    failures.remember("first", error, {.seconds = 0, .memory_bytes = 0});
    CHECK(failures.find("first", {})->message == "refused");
    for (std::size_t i = 0; i < Failures::kMost; ++i)
        failures.remember(std::to_string(i), error, {});
    CHECK(!failures.find("first", {}));
    CHECK(failures.find("0", {}));
    failures.clear();
    CHECK(!failures.find("0", {}));
}
