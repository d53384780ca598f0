#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "cache/store.h"
#include "scratch.h"

using namespace flexc;
using namespace flexc::test;
using cache::Entry;
using cache::Store;

namespace {

pid_t start(const std::function<bool()>& work) {
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(60);
        ::_exit(work() ? 0 : 1);
    }
    return child;
}

int finish(pid_t child) {
    int status = -1;
    ::waitpid(child, &status, 0);
    return status;
}

// Metadata and payload of one writer, so that a mixture of two writers shows.
Entry entry_of(unsigned writer) {
    return {"writer " + std::to_string(writer), pattern_bytes(50000 + writer * 1000, writer)};
}

bool is_whole(const Entry& entry) {
    const unsigned writer = static_cast<unsigned>(std::stoul(entry.metadata.substr(7)));
    return entry.payload == entry_of(writer).payload;
}

} // namespace

TEST_CASE("processes that publish the same key at once leave one whole entry") {
    for (const bool hard_links : {true, false}) {
        CAPTURE(hard_links);
        const Scratch scratch;
        int gate[2];
        REQUIRE(::pipe(gate) == 0);
        constexpr unsigned kProcesses = 12;
        std::vector<pid_t> children;
        for (unsigned writer = 0; writer < kProcesses; ++writer)
            children.push_back(start([&] {
                char go = 0;
                ::close(gate[1]);
                if (::read(gate[0], &go, 1) != 0) return false; // until the parent closes it
                Listener listener;
                const auto store = Store::open(scratch.options(), {.hard_links = hard_links});
                for (std::uint64_t key = 0; key < 10; ++key) {
                    store->publish(key_of(key), kSource, entry_of(writer), listener.log());
                    const auto loaded = store->load(key_of(key), kSource, listener.log());
                    if (!loaded || !is_whole(*loaded)) return false;
                }
                return listener.warnings == 0 && store->statistics().corrupt == 0;
            }));
        ::close(gate[0]);
        ::close(gate[1]);
        for (const pid_t child : children)
            CHECK(finish(child) == 0);
        CHECK(scratch.files().size() == 10);
    }
}

TEST_CASE("a publisher that is killed leaves no damaged entry") {
    const Scratch scratch;
    const unsigned seed = static_cast<unsigned>(::getpid());
    MESSAGE("seed ", seed);
    unsigned state = seed;
    for (int round = 0; round < 40; ++round) {
        const pid_t child = start([&] {
            const auto store = Store::open(scratch.options());
            const auto first_key = static_cast<std::uint64_t>(round) * 5;
            for (unsigned i = 0;; ++i)
                store->publish(key_of(first_key + i % 5), kSource, entry_of(i % 7));
            return true;
        });
        // Half of the rounds end in the first publish, half in a later one.
        const auto first =
            scratch.cache() / cache::entry_name(key_of(static_cast<std::uint64_t>(round) * 5));
        while (round % 2 == 1 && !fs::exists(first))
            std::this_thread::yield();
        state = state * 1664525u + 1013904223u;
        std::this_thread::sleep_for(std::chrono::microseconds(state >> 20));
        ::kill(child, SIGKILL);
        CHECK(WIFSIGNALED(finish(child)));
        const auto store = Store::open(scratch.options());
        std::size_t names = 0;
        for (std::uint64_t key = 0; key < 200; ++key) {
            const auto name = cache::entry_name(key_of(key));
            if (!fs::exists(scratch.cache() / name)) continue;
            ++names;
            const auto found = store->load(key_of(key), kSource);
            REQUIRE(found);
            REQUIRE(is_whole(*found));
        }
        CHECK(store->statistics().entries == names);
    }
    // What the dead left goes once it is old.
    std::this_thread::sleep_for(std::chrono::milliseconds(2100));
    const auto store = Store::open(scratch.options(), {.stale_temporary = std::chrono::seconds(1)});
    store->publish(key_of(9999), kSource, entry_of(1));
    for (const auto& file : scratch.files())
        CHECK_FALSE(file.filename().string().starts_with(".flexc-tmp-"));
}

TEST_CASE("a store opened before fork works in the children") {
    const Scratch scratch;
    const auto store = Store::open(scratch.options());
    store->publish(key_of(1), kSource, entry_of(1));
    std::vector<pid_t> children;
    for (unsigned writer = 0; writer < 6; ++writer)
        children.push_back(start([&] {
            store->publish(key_of(100 + writer), kSource, entry_of(writer));
            return store->load(key_of(1), kSource) && store->load(key_of(100 + writer), kSource);
        }));
    for (const pid_t child : children)
        CHECK(finish(child) == 0);
    CHECK(store->statistics().entries == 7);
}

TEST_CASE("threads publish, load, evict and clear at once") {
    const Scratch scratch;
    const auto store = Store::open(scratch.options(400000));
    std::atomic<bool> wrong = false;
    std::vector<std::thread> threads;
    for (unsigned writer = 0; writer < 4; ++writer)
        threads.emplace_back([&, writer] {
            for (unsigned i = 0; i < 60; ++i) {
                const auto key = key_of((i + writer) % 12);
                store->publish(key, kSource, entry_of(writer));
                const auto loaded = store->load(key, kSource);
                if (loaded && !is_whole(*loaded)) wrong = true;
                if (writer == 0 && i % 20 == 19 && !store->clear()) wrong = true;
            }
        });
    for (auto& thread : threads)
        thread.join();
    CHECK_FALSE(wrong);
    CHECK(store->statistics().corrupt == 0);
    CHECK(store->statistics().bytes <= 400000 + 4 * 60000);
}
