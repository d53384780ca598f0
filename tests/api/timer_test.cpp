#include <chrono>
#include <thread>

#include <doctest/doctest.h>

#include "flexc/compile.h"

using namespace flexc;

namespace {

const Device kCpu = Device::cpu();

Result<void> count(void* calls) {
    ++*static_cast<int*>(calls);
    return {};
}

TEST_CASE("a timer calls once, five times for an estimate, warms up, and times at least five") {
    int calls = 0;
    const auto times = Timer::measure(kCpu, {.warm_up_ms = 0, .load_ms = 0}, count, &calls);
    REQUIRE(times);
    CHECK(times->size() == 5);
    CHECK(calls == 1 + 5 + 1 + 5);
}

TEST_CASE("a timer fills the load with calls") {
    const auto sleep = [](void*) -> Result<void> {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        return {};
    };
    const auto times = Timer::measure(kCpu, {.warm_up_ms = 0, .load_ms = 40}, sleep, nullptr);
    REQUIRE(times);
    // Sleeps may be longer, and are never shorter.
    CHECK(times->size() >= 5);
    CHECK(times->size() <= 20);
    for (const double time : *times)
        CHECK(time >= 2);
}

TEST_CASE("a timer gives the error of what it times") {
    int calls = 0;
    const auto fail_late = [](void* made) -> Result<void> {
        if (++*static_cast<int*>(made) == 9) return Error{ErrorCode::internal, "no more"};
        return {};
    };
    const auto times = Timer::measure(kCpu, {}, fail_late, &calls);
    REQUIRE_FALSE(times);
    CHECK(times.error().message == "no more");
    CHECK(calls == 9);
}

} // namespace
