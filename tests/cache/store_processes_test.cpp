#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include <sys/mman.h>
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
        constexpr unsigned kProcesses = 32;
        std::vector<pid_t> children;
        for (unsigned writer = 0; writer < kProcesses; ++writer)
            children.push_back(start([&] {
                char go = 0;
                ::close(gate[1]);
                if (::read(gate[0], &go, 1) != 0) return false; // until the parent closes it
                Listener listener;
                const auto store = Store::open(scratch.options(), {.hard_links = hard_links});
                for (std::uint64_t key = 0; key < 10; ++key) {
                    store->publish(key_of(key), entry_of(writer), listener.log());
                    const auto loaded = store->load(key_of(key), listener.log());
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
                store->publish(key_of(first_key + i % 5), entry_of(i % 7));
            return true;
        });
        // Half of the rounds end in the first publish, half in a later one.
        const auto first = scratch.cache() /
                           cache::entry_name(key_of(static_cast<std::uint64_t>(round) * 5).digest);
        while (round % 2 == 1 && !fs::exists(first))
            std::this_thread::yield();
        state = state * 1664525u + 1013904223u;
        std::this_thread::sleep_for(std::chrono::microseconds(state >> 20));
        ::kill(child, SIGKILL);
        CHECK(WIFSIGNALED(finish(child)));
        const auto store = Store::open(scratch.options());
        std::size_t names = 0;
        for (std::uint64_t key = 0; key < 200; ++key) {
            const auto name = cache::entry_name(key_of(key).digest);
            if (!fs::exists(scratch.cache() / name)) continue;
            ++names;
            const auto found = store->load(key_of(key));
            REQUIRE(found);
            REQUIRE(is_whole(*found));
        }
        CHECK(store->statistics().entries == names);
    }
    // What the dead left goes once it is old.
    std::this_thread::sleep_for(std::chrono::milliseconds(2100));
    const auto store = Store::open(scratch.options(), {.stale_temporary = std::chrono::seconds(1)});
    store->publish(key_of(9999), entry_of(1));
    for (const auto& file : scratch.files())
        CHECK_FALSE(file.filename().string().starts_with(".flexc-tmp-"));
}

namespace {

constexpr unsigned kKeys = 24;
constexpr std::uint64_t kRoom = 1'200'000; // less than all keys need

// What processes tell each other; lives in memory that they share.
struct Torture {
    std::atomic<bool> is_over{false};
    std::atomic<std::uint64_t> found{0}, published{0}, wrong{0}, warnings{0};
};

class SharedTorture {
  public:
    SharedTorture() {
        void* memory = ::mmap(nullptr, sizeof(Torture), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        REQUIRE(memory != MAP_FAILED);
        torture_ = new (memory) Torture;
    }
    ~SharedTorture() { ::munmap(torture_, sizeof(Torture)); }
    SharedTorture(const SharedTorture&) = delete;
    SharedTorture& operator=(const SharedTorture&) = delete;
    Torture& operator*() const { return *torture_; }
    Torture* operator->() const { return torture_; }

  private:
    Torture* torture_;
};

// Says which key it is of, too.
Entry entry_of(std::uint64_t key, unsigned writer) {
    const auto number = static_cast<unsigned>(key);
    return {"key " + std::to_string(key) + " writer " + std::to_string(writer),
            pattern_bytes(40000 + number * 1500 + writer * 17, writer * kKeys + number)};
}

bool is_right(std::uint64_t key, const Entry& found) {
    const std::size_t last = found.metadata.rfind(' ');
    if (last == std::string::npos) return false;
    const auto writer = static_cast<unsigned>(std::stoul(found.metadata.substr(last)));
    const Entry expected = entry_of(key, writer);
    return found.metadata == expected.metadata && found.payload == expected.payload;
}

enum class Role { writes, reads, removes, damages };

// Cuts or overwrites the bytes of an entry in place, as a failing disk does.
void damage(const fs::path& file, std::minstd_rand& random) {
    std::error_code ignored;
    const auto size = fs::file_size(file, ignored);
    if (ignored || size == 0) return;
    if (random() % 2 == 0) return fs::resize_file(file, random() % size, ignored);
    std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
    stream.seekp(static_cast<std::streamoff>(random() % size));
    stream.put(static_cast<char>(random()));
}

void take_part(Role role, unsigned seed, const Scratch& scratch, bool hard_links,
               Torture& torture) {
    std::minstd_rand random(seed);
    Listener listener;
    const auto store = Store::open(scratch.options(kRoom), {.hard_links = hard_links});
    while (!torture.is_over) {
        const std::uint64_t key = random() % kKeys;
        switch (role) {
        case Role::writes:
            store->publish(key_of(key), entry_of(key, random() % 5), listener.log());
            ++torture.published;
            break;
        case Role::reads:
            if (const auto found = store->load(key_of(key), listener.log())) {
                ++torture.found;
                if (!is_right(key, *found)) ++torture.wrong;
            }
            break;
        case Role::removes:
            if (random() % 50 == 0)
                (void)store->clear(listener.log());
            else
                store->remove(key_of(key), listener.log());
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            break;
        case Role::damages:
            damage(scratch.cache() / cache::entry_name(key_of(key).digest), random);
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            break;
        }
    }
    torture.warnings += static_cast<unsigned>(listener.warnings);
}

} // namespace

TEST_CASE("of 32 processes that write, read, remove and are killed, no reader gets a wrong entry") {
    constexpr unsigned kProcesses = 32, kKills = 80, kFound = 500;
    std::random_device source;
    for (const bool is_damaged : {false, true}) {
        const Scratch scratch;
        const SharedTorture torture;
        const unsigned seed = source();
        CAPTURE(seed);
        CAPTURE(is_damaged);
        std::minstd_rand random(seed);
        const auto role_of = [&](unsigned process) {
            return process == 0                 ? Role::removes
                   : process == 1 && is_damaged ? Role::damages
                   : process % 2 == 0           ? Role::writes
                                                : Role::reads;
        };
        const auto begin = [&](unsigned process) {
            const auto child_seed = static_cast<unsigned>(random());
            return start([&, process, child_seed] {
                // Some machines' file systems have no hard links.
                take_part(role_of(process), child_seed, scratch, process % 3 != 0, *torture);
                return true;
            });
        };
        std::vector<pid_t> children;
        for (unsigned process = 0; process < kProcesses; ++process)
            children.push_back(begin(process));
        const auto latest = std::chrono::steady_clock::now() + std::chrono::seconds(50);
        for (unsigned kills = 0; kills < kKills || torture->found < kFound; ++kills) {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
            const auto victim = static_cast<unsigned>(random() % kProcesses);
            ::kill(children[victim], SIGKILL);
            const int status = finish(children[victim]);
            REQUIRE(WIFSIGNALED(status));
            REQUIRE(WTERMSIG(status) == SIGKILL);
            children[victim] = begin(victim);
            if (std::chrono::steady_clock::now() > latest) break;
        }
        torture->is_over = true;
        for (const pid_t child : children)
            CHECK(finish(child) == 0);
        CHECK(torture->wrong == 0);
        CHECK(torture->found > 0);
        CHECK(torture->published > 0);
        if (!is_damaged) CHECK(torture->warnings == 0);
        const auto store = Store::open(scratch.options());
        for (std::uint64_t key = 0; key < kKeys; ++key)
            if (const auto found = store->load(key_of(key))) CHECK(is_right(key, *found));
        if (!is_damaged) CHECK(store->statistics().corrupt == 0);
        // All of it still works, and what the dead left goes once it is old.
        std::this_thread::sleep_for(std::chrono::milliseconds(2100));
        const auto later =
            Store::open(scratch.options(), {.stale_temporary = std::chrono::seconds(1)});
        later->publish(key_of(9999), entry_of(1));
        CHECK(later->load(key_of(9999)).has_value());
        for (const auto& file : scratch.files())
            CHECK_FALSE(file.filename().string().starts_with(".flexc-tmp-"));
    }
}

TEST_CASE("a store opened before fork works in the children") {
    const Scratch scratch;
    const auto store = Store::open(scratch.options());
    store->publish(key_of(1), entry_of(1));
    std::vector<pid_t> children;
    for (unsigned writer = 0; writer < 6; ++writer)
        children.push_back(start([&] {
            store->publish(key_of(100 + writer), entry_of(writer));
            return store->load(key_of(1)) && store->load(key_of(100 + writer));
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
                store->publish(key, entry_of(writer));
                const auto loaded = store->load(key);
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
