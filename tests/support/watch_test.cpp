#include "support/watch.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <pthread.h>

using namespace flexc;
using namespace std::chrono_literals;
using support::Watch;

namespace {

auto counter() { return std::make_shared<support::Runs>(); }

double seconds_of(const auto& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

} // namespace

TEST_CASE("work that ends in time gives what it found") {
    const Watch watch({.seconds = 100}, {}, counter());
    CHECK(*watch.run<int>([]() -> Result<int> { return 7; }) == 7);
    CHECK(watch.run<int>([]() -> Result<int> { throw std::bad_alloc(); }).error().message ==
          "out of memory");
    CHECK(*Watch().run<int>([]() -> Result<int> { return 8; }) == 8);
    CHECK(!watch.has_stopped());
}

TEST_CASE("work has the stack of a long program's compile, however little other threads have") {
    pthread_attr_t before, small;
    REQUIRE(pthread_getattr_default_np(&before) == 0);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, std::size_t{256} << 10);
    REQUIRE(pthread_setattr_default_np(&small) == 0);
    const Watch watch({.seconds = 100}, {}, counter());
    const auto stack_bytes = watch.run<std::size_t>([]() -> Result<std::size_t> {
        pthread_attr_t own;
        std::size_t bytes = 0;
        pthread_getattr_np(pthread_self(), &own);
        pthread_attr_getstacksize(&own, &bytes);
        pthread_attr_destroy(&own);
        return bytes;
    });
    pthread_setattr_default_np(&before);
    pthread_attr_destroy(&small);
    pthread_attr_destroy(&before);
    CHECK(*stack_bytes >= std::size_t{8} << 20);
}

TEST_CASE("work that does not end is given up, and does not pile up") {
    const auto runs = counter();
    const auto gate = std::make_shared<std::atomic<bool>>(false);
    const auto hangs = [gate]() -> Result<int> {
        while (!gate->load())
            std::this_thread::sleep_for(1ms);
        return 1;
    };
    for (int i = 0; i < 4; ++i) {
        const Watch watch({.seconds = 0.1}, {}, runs);
        const double taken = seconds_of([&] {
            const auto result = watch.run<int>(hangs);
            CHECK(result.error().code == ErrorCode::limit);
            CHECK(result.error().message.starts_with("the compile was stopped after 0.1 seconds"));
        });
        CHECK(taken < 2.1);
        CHECK(watch.has_stopped());
    }
    CHECK(runs->abandoned == 4);
    const auto refused = Watch({.seconds = 1}, {}, runs).run<int>(hangs);
    CHECK(refused.error().code == ErrorCode::limit);
    CHECK(refused.error().message.starts_with("4 compiles that were stopped before"));
    gate->store(true);
    while (runs->abandoned > 0)
        std::this_thread::sleep_for(1ms);
    CHECK(Watch({.seconds = 1}, {}, runs).run<int>(hangs));
}

TEST_CASE("work that asks is over soon after it is cancelled") {
    const CancelToken token = CancelToken::create(), copy = token;
    const Watch watch({.seconds = 0, .memory_bytes = 0}, token, counter());
    const std::jthread other([copy] {
        std::this_thread::sleep_for(50ms);
        copy.cancel();
    });
    const double taken = seconds_of([&] {
        const auto result = watch.run<int>([watch]() -> Result<int> {
            while (!watch.is_over())
                std::this_thread::sleep_for(1ms);
            return Error{ErrorCode::internal, "stopped"};
        });
        CHECK(result.error().code == ErrorCode::cancelled);
    });
    CHECK(taken < 2);
    CHECK(!watch.has_stopped()); // neither time nor memory
    CHECK(!CancelToken().is_cancelled());
}

TEST_CASE("work that ends by itself because it was cancelled was cancelled") {
    const CancelToken token = CancelToken::create();
    const auto result = Watch({}, token, counter()).run<int>([token]() -> Result<int> {
        token.cancel();
        return Error{ErrorCode::internal, "stopped"};
    });
    CHECK(result.error().code == ErrorCode::cancelled);
    const auto found = Watch({}, token, counter()).check();
    CHECK(found.error().code == ErrorCode::cancelled);
}

TEST_CASE("memory that the process takes meanwhile") {
    if (support::memory_in_use() == 0) return;
    const Watch watch({.seconds = 0, .memory_bytes = 64 << 20}, {}, counter());
    CHECK(watch.check());
    std::vector<char> taken(256 << 20, 1);
    CHECK(taken[12345] == 1);
    CHECK(watch.check().error().message.find("grew by more than 64 MiB") != std::string::npos);
}

TEST_CASE(
    "there is room while fewer runs go on than there are processors, and given up ones count") {
    const int processors = static_cast<int>(std::thread::hardware_concurrency());
    const auto runs = counter();
    const Watch watch({.seconds = 60}, {}, runs);
    // has_room() inside of so many runs.
    const std::function<bool(int)> inside = [&](int depth) {
        if (depth == 0) return watch.has_room();
        return *watch.run<bool>([&]() -> Result<bool> { return inside(depth - 1); });
    };
    CHECK(inside(0) == (processors > 1));
    CHECK(inside(processors - 1) == (processors > 1));
    CHECK_FALSE(inside(processors));
    CHECK_FALSE(Watch().has_room()); // of nothing that counts
    const auto gate = std::make_shared<std::atomic<bool>>(false);
    const Watch hasty({.seconds = 0.1}, {}, runs);
    CHECK_FALSE(hasty.run<int>([gate]() -> Result<int> {
        while (!gate->load())
            std::this_thread::sleep_for(1ms);
        return 1;
    }));
    CHECK_FALSE(inside(processors - 1));
    gate->store(true);
    while (runs->abandoned > 0)
        std::this_thread::sleep_for(1ms);
    CHECK(inside(processors - 1) == (processors > 1));
}
