#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "cache/modules.h"

using namespace flexc;
using Numbers = cache::Modules<int>;
using Made = Numbers::Made;

namespace {

std::string key_of(int number) { return std::to_string(number); }

Numbers::Make make(int value, std::uint64_t bytes = 1) {
    return [=]() -> Result<Made> { return Made{std::make_shared<int>(value), bytes}; };
}

Numbers::Make never() {
    return []() -> Result<Made> {
        FAIL_CHECK("compiled again");
        return Error{};
    };
}

// Returns when `count` callers wait; sleeping alone would pass on a fast machine only.
void until_waiting(const Numbers& modules, std::uint64_t count) {
    while (modules.statistics().waits < count)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

} // namespace

TEST_CASE("the second call finds what the first made") {
    Numbers modules;
    const auto first = modules.get(key_of(1), make(7));
    const auto second = modules.get(key_of(1), never());
    REQUIRE(first);
    REQUIRE(second);
    CHECK(**first == 7);
    CHECK(first->get() == second->get());
    CHECK(modules.statistics().hits == 1);
    CHECK(modules.statistics().made == 1);
}

TEST_CASE("many threads, one key, one compile") {
    Numbers modules;
    constexpr int kThreads = 8;
    std::atomic<int> compiles = 0;
    std::atomic<int> right = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i)
        threads.emplace_back([&] {
            const auto value = modules.get(key_of(1), [&]() -> Result<Made> {
                ++compiles;
                until_waiting(modules, kThreads - 1);
                return Made{std::make_shared<int>(5), 1};
            });
            if (value && **value == 5) ++right;
        });
    for (auto& thread : threads)
        thread.join();
    CHECK(compiles == 1);
    CHECK(right == kThreads);
}

TEST_CASE("different keys compile at the same time") {
    Numbers modules;
    std::latch both(2);
    const auto meet = [&]() -> Result<Made> {
        both.arrive_and_wait(); // hangs if a lock is held while compiling
        return Made{std::make_shared<int>(1), 1};
    };
    std::thread other([&] { CHECK(modules.get(key_of(1), meet).has_value()); });
    CHECK(modules.get(key_of(2), meet).has_value());
    other.join();
}

TEST_CASE("a failure reaches everyone who waits and is not remembered") {
    Numbers modules;
    std::atomic<int> told = 0;
    const auto fail = [&]() -> Result<Made> {
        until_waiting(modules, 2);
        return Error{ErrorCode::compile_failed, "no"};
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
        threads.emplace_back([&] {
            const auto value = modules.get(key_of(1), fail);
            if (!value && value.error().message == "no") ++told;
        });
    for (auto& thread : threads)
        thread.join();
    CHECK(told == 3);
    CHECK(modules.statistics().failures == 1);
    const auto again = modules.get(key_of(1), make(3));
    REQUIRE(again);
    CHECK(**again == 3);
}

TEST_CASE("an exception reaches everyone who waits and leaves nothing behind") {
    Numbers modules;
    std::atomic<int> told = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
        threads.emplace_back([&] {
            try {
                (void)modules.get(key_of(1), [&]() -> Result<Made> {
                    until_waiting(modules, 2);
                    throw std::runtime_error("broken");
                });
            } catch (const std::runtime_error&) {
                ++told;
            }
        });
    for (auto& thread : threads)
        thread.join();
    CHECK(told == 3);
    CHECK(modules.get(key_of(1), make(3)).has_value());
}

TEST_CASE("a compile may ask for another key") {
    Numbers modules;
    const auto outer = modules.get(key_of(1), [&]() -> Result<Made> {
        const auto inner = modules.get(key_of(2), make(20));
        return Made{std::make_shared<int>(**inner + 1), 1};
    });
    REQUIRE(outer);
    CHECK(**outer == 21);
    CHECK(modules.statistics().count == 2);
}

TEST_CASE("a compile that asks for itself is told so") {
    Numbers modules;
    const auto value = modules.get(key_of(1), [&]() -> Result<Made> {
        const auto inner = modules.get(key_of(1), never());
        if (!inner) return inner.error();
        return Made{*inner, 1};
    });
    REQUIRE_FALSE(value);
    CHECK(value.error().code == ErrorCode::internal);
}

TEST_CASE("two compiles that ask for each other do not hang") {
    Numbers modules;
    std::latch started(2);
    std::atomic<int> failed = 0;
    const auto ask = [&](std::uint64_t mine, std::uint64_t other) {
        const auto value = modules.get(key_of(mine), [&]() -> Result<Made> {
            started.arrive_and_wait();
            const auto inner = modules.get(key_of(other), never());
            if (!inner) return inner.error();
            return Made{*inner, 1};
        });
        if (!value) ++failed;
    };
    std::thread first([&] { ask(1, 2); });
    std::thread second([&] { ask(2, 1); });
    first.join();
    second.join();
    CHECK(failed == 2);
    CHECK(modules.get(key_of(1), make(1)).has_value());
}

TEST_CASE("keys are compared whole, not by a digest of them") {
    Numbers modules;
    const std::string long_key(100000, 'k');
    REQUIRE(modules.get(long_key + "1", make(1)));
    CHECK(**modules.get(long_key + "2", make(2)) == 2);
    CHECK(*modules.find(long_key + "1") == 1);
}

TEST_CASE("the least recently used goes first, by count and by bytes") {
    Numbers by_count({.count = 2, .bytes = 1000});
    REQUIRE(by_count.get(key_of(1), make(1)));
    REQUIRE(by_count.get(key_of(2), make(2)));
    REQUIRE(by_count.get(key_of(1), never()));
    REQUIRE(by_count.get(key_of(3), make(3)));
    CHECK(by_count.find(key_of(1)) != nullptr);
    CHECK(by_count.find(key_of(2)) == nullptr);
    CHECK(by_count.statistics().evicted == 1);

    Numbers by_bytes({.count = 100, .bytes = 10});
    REQUIRE(by_bytes.get(key_of(1), make(1, 6)));
    REQUIRE(by_bytes.get(key_of(2), make(2, 6)));
    CHECK(by_bytes.statistics().count == 1);
    CHECK(by_bytes.statistics().bytes == 6 + key_of(2).size());
    const auto large = by_bytes.get(key_of(3), make(3, 100));
    REQUIRE(large);
    CHECK(by_bytes.statistics().count == 1);
    CHECK(by_bytes.find(key_of(3)) != nullptr);
}

TEST_CASE("what is evicted or cleared lives on with those who hold it") {
    Numbers modules({.count = 1, .bytes = 100});
    const auto held = modules.get(key_of(1), make(11));
    REQUIRE(modules.get(key_of(2), make(2)));
    modules.clear();
    CHECK(modules.statistics().count == 0);
    CHECK(modules.statistics().bytes == 0);
    CHECK(**held == 11);
}

namespace {
// As a module that looks into the cache while it dies.
struct Nosy {
    explicit Nosy(cache::Modules<Nosy>* owner) : modules(owner) {}
    cache::Modules<Nosy>* modules;
    ~Nosy() { modules->statistics(); }
};
} // namespace

TEST_CASE("no lock is held while an evicted value dies") {
    cache::Modules<Nosy> modules({.count = 1, .bytes = 100});
    for (std::uint64_t i = 0; i < 3; ++i)
        REQUIRE(modules.get(key_of(i), [&]() -> Result<cache::Modules<Nosy>::Made> {
            return cache::Modules<Nosy>::Made{std::make_shared<Nosy>(&modules), 1};
        }));
    modules.clear();
}

TEST_CASE("a child of fork does not wait for its parent's threads") {
    Numbers modules;
    std::latch forked(1);
    std::thread maker([&] {
        (void)modules.get(key_of(1), [&]() -> Result<Made> {
            forked.wait();
            return Made{std::make_shared<int>(1), 1};
        });
    });
    while (modules.statistics().made == 0)
        std::this_thread::yield();
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(10);
        const auto value = modules.get(key_of(1), make(2));
        ::_exit(value && **value == 2 ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    forked.count_down();
    maker.join();
    CHECK(status == 0);
}
