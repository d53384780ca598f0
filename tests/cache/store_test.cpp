#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include <sys/stat.h>

#include "cache/store.h"
#include "scratch.h"

using namespace flexc;
using namespace flexc::test;
using cache::Entry;
using cache::Store;
using cache::Stores;

namespace {

void age(const fs::path& path, std::chrono::seconds by) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - by);
}

} // namespace

TEST_CASE("what is published is loaded, by this store and by another") {
    const Scratch scratch;
    const Entry entry{"meta", pattern_bytes(100000, 1)};
    const auto first = Store::open(scratch.options());
    CHECK_FALSE(first->load(kKey));
    CHECK_FALSE(fs::exists(scratch.cache())); // nothing to keep yet
    first->publish(kKey, entry);
    for (const auto& store : {first, Store::open(scratch.options())}) {
        const auto loaded = store->load(kKey);
        REQUIRE(loaded);
        CHECK(loaded->metadata == entry.metadata);
        CHECK(loaded->payload == entry.payload);
        CHECK_FALSE(store->load(key_of(2)));
    }
    CHECK(first->statistics().hits == 1);
    CHECK(first->statistics().misses == 2);
    CHECK(first->statistics().published == 1);
    CHECK(first->statistics().entries == 1);
    CHECK(first->statistics().bytes == cache::kHeaderSize + kKey.text.size() + 4 + 100000);
    CHECK(scratch.files().size() == 1); // no temporary file stays
}

TEST_CASE("folder and entries are private") {
    const Scratch scratch;
    Store::open(scratch.options())->publish(kKey, {"m", "p"});
    struct stat status{};
    REQUIRE(::stat(scratch.cache().c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0700);
    REQUIRE(::stat(scratch.files().at(0).c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
}

TEST_CASE("empty metadata and payload are kept as well") {
    const Scratch scratch;
    const auto store = Store::open(scratch.options());
    store->publish(kKey, {});
    const auto loaded = store->load(kKey);
    REQUIRE(loaded);
    CHECK(loaded->metadata.empty());
    CHECK(loaded->payload.empty());
}

TEST_CASE("the first entry of a key stays, with and without hard links' help") {
    const Scratch scratch;
    const auto store = Store::open(scratch.options());
    store->publish(kKey, {"first", "1"});
    store->publish(kKey, {"second", "2"});
    CHECK(store->load(kKey)->metadata == "first");
    CHECK(scratch.files().size() == 1);

    const auto renaming = Store::open(scratch.options(), {.hard_links = false});
    renaming->publish(kKey, {"third", "3"});
    const auto loaded = renaming->load(kKey);
    REQUIRE(loaded);
    CHECK(loaded->metadata == "third");
    CHECK(scratch.files().size() == 1);
}

TEST_CASE("an entry of another text under the same digest is a miss and is replaced") {
    const Scratch scratch;
    const auto store = Store::open(scratch.options());
    store->publish(kKey, {"old", "1"});
    CHECK_FALSE(store->load(kForged));
    CHECK(store->statistics().corrupt == 1);
    store->publish(kForged, {"new", "2"});
    REQUIRE(store->load(kForged));
    CHECK(store->load(kForged)->metadata == "new");
}

TEST_CASE("an entry that its user refuses is replaced") {
    const Scratch scratch;
    const auto store = Store::open(scratch.options());
    store->discard(kKey); // nothing there
    store->publish(kKey, {"refused", "1"});
    store->discard(kKey);
    CHECK_FALSE(store->load(kKey));
    store->publish(kKey, {"better", "2"});
    REQUIRE(store->load(kKey));
    CHECK(store->load(kKey)->metadata == "better");
}

TEST_CASE("switched off, it keeps nothing, makes nothing and says nothing") {
    const Scratch scratch;
    Listener listener;
    auto options = scratch.options();
    options.disk = false;
    const auto store = Store::open(options);
    store->publish(kKey, {"m", "p"}, listener.log());
    CHECK_FALSE(store->load(kKey, listener.log()));
    CHECK(store->statistics().directory.empty());
    CHECK(store->statistics().misses == 0);
    CHECK_FALSE(fs::exists(scratch.cache()));
    CHECK(listener.warnings == 0);
}

TEST_CASE("the oldest go when the budget is spent, down to 80 percent") {
    const Scratch scratch;
    constexpr std::uint64_t kSize = 1000;
    const auto store = Store::open(scratch.options(10 * kSize));
    const std::string payload(kSize - cache::kHeaderSize - kKey.text.size(), 'x');
    for (std::uint64_t i = 0; i < 10; ++i) {
        store->publish(key_of(i), {"", payload});
        for (const auto& file : scratch.files())
            if (file.filename().string().starts_with(key_of(i).digest.hex()))
                age(file, std::chrono::hours(24 - static_cast<int>(i)));
    }
    CHECK(store->statistics().entries == 10);
    store->publish(key_of(10), {"", payload});
    CHECK(store->statistics().entries == 8);
    CHECK(store->statistics().bytes == 8 * kSize);
    CHECK(store->statistics().evicted == 3);
    for (std::uint64_t i = 0; i < 3; ++i)
        CHECK_FALSE(store->load(key_of(i)));
    for (std::uint64_t i = 3; i < 11; ++i)
        CHECK(store->load(key_of(i)));
}

TEST_CASE("a new process finds a full folder and makes room") {
    const Scratch scratch;
    const std::string payload(1000, 'x');
    for (std::uint64_t i = 0; i < 10; ++i)
        Store::open(scratch.options())->publish(key_of(i), {"", payload});
    const auto small = Store::open(scratch.options(5000));
    small->publish(key_of(99), {"", payload});
    CHECK(small->statistics().bytes <= 4000);
    CHECK(small->load(key_of(99)));
}

TEST_CASE("what is larger than the whole budget is not kept and evicts nothing") {
    const Scratch scratch;
    const auto store = Store::open(scratch.options(2000));
    store->publish(key_of(1), {"", "small"});
    store->publish(key_of(2), {"", std::string(3000, 'x')});
    CHECK(store->load(key_of(1)));
    CHECK_FALSE(store->load(key_of(2)));
}

TEST_CASE("a hit makes an entry young again, but not at every hit") {
    const Scratch scratch;
    const auto store = Store::open(scratch.options());
    store->publish(kKey, {"m", "p"});
    const fs::path file = scratch.files().at(0);
    for (const auto& [hours, touched] :
         {std::pair(48, true), std::pair(2, false), std::pair(-48, true)}) {
        age(file, std::chrono::hours(hours));
        const auto before = fs::last_write_time(file);
        REQUIRE(store->load(kKey));
        CAPTURE(hours);
        CHECK((fs::last_write_time(file) != before) == touched);
    }
}

TEST_CASE("temporary files of the dead are reaped, those of the living are not") {
    const Scratch scratch;
    Store::open(scratch.options())->publish(kKey, {"m", "p"});
    const fs::path stale = scratch.cache() / ".flexc-tmp-1-0-0";
    const fs::path young = scratch.cache() / ".flexc-tmp-2-0-0";
    const fs::path foreign = scratch.cache() / "notes.txt";
    for (const auto& path : {stale, young, foreign}) {
        write_file(path, "x");
        age(path, std::chrono::hours(path == young ? 0 : 2));
    }
    Store::open(scratch.options())->publish(key_of(2), {"m", "p"});
    CHECK_FALSE(fs::exists(stale));
    CHECK(fs::exists(young));
    CHECK(fs::exists(foreign));
}

TEST_CASE("clear removes what is ours, of any version, and nothing else") {
    const Scratch scratch;
    const auto store = Store::open(scratch.options());
    CHECK(store->clear()); // nothing there yet
    store->publish(kKey, {"m", "p"});
    write_file(scratch.cache() / (std::string(32, 'a') + ".v2"), "an older flexc's");
    write_file(scratch.cache() / (key_of(5).digest.hex() + ".v99"), "a later flexc's");
    write_file(scratch.cache() / "precious.txt", "x");
    write_file(scratch.cache() / (cache::entry_name(key_of(5).digest) + ".bak"), "x");
    CHECK(store->statistics().entries == 3);
    CHECK(store->clear());
    CHECK(store->statistics().entries == 0);
    CHECK(scratch.files().size() == 2);
    CHECK_FALSE(store->load(kKey));
}

TEST_CASE("a folder that is removed under a running process comes back") {
    const Scratch scratch;
    const auto store = Store::open(scratch.options());
    store->publish(kKey, {"m", "p"});
    fs::remove_all(scratch.cache());
    CHECK_FALSE(store->load(kKey));
    store->publish(kKey, {"m", "p"});
    CHECK(store->load(kKey));
}

TEST_CASE("one store per folder and budget") {
    const Scratch scratch;
    Stores stores;
    const auto store = stores.get(scratch.options());
    CHECK(stores.get(scratch.options()) == store);
    CHECK(stores.get(scratch.options(5)) != store);
    auto slash = scratch.options();
    slash.directory += "/./";
    CHECK(stores.get(slash)->directory() == store->directory());
    CHECK(stores.get(slash) == store);
}

TEST_CASE("the folder: option, then FLEXC_CACHE_DIR, then XDG, then home; never /tmp") {
    struct Saved {
        explicit Saved(const char* variable) : name(variable) {
            if (const char* old = ::getenv(variable)) value = old;
        }
        ~Saved() { value.empty() ? ::unsetenv(name) : ::setenv(name, value.c_str(), 1); }
        const char* name;
        std::string value;
    };
    const Saved own("FLEXC_CACHE_DIR"), xdg("XDG_CACHE_HOME"), home("HOME");
    ::setenv("FLEXC_CACHE_DIR", "/own", 1);
    ::setenv("XDG_CACHE_HOME", "/xdg", 1);
    ::setenv("HOME", "/home/me", 1);
    CHECK(cache::cache_directory({.directory = "/option/"}) == "/option");
    CHECK(cache::cache_directory({}) == "/own");
    ::setenv("FLEXC_CACHE_DIR", "relative", 1);
    CHECK(cache::cache_directory({}) == (fs::current_path() / "relative").string());
    ::unsetenv("FLEXC_CACHE_DIR");
    CHECK(cache::cache_directory({}) == "/xdg/flexc");
    ::setenv("XDG_CACHE_HOME", "relative", 1);
    CHECK(cache::cache_directory({}) == "/home/me/.cache/flexc");
    ::setenv("HOME", "", 1);
    CHECK(cache::cache_directory({}).empty());

    Listener listener;
    const auto store = Store::open({});
    for (int i = 0; i < 3; ++i) {
        store->publish(kKey, {"m", "p"}, listener.log());
        CHECK_FALSE(store->load(kKey, listener.log()));
    }
    CHECK(listener.warnings == 1);
}

TEST_CASE("a hit takes well under a millisecond") {
    const Scratch scratch;
    const auto store = Store::open(scratch.options());
    store->publish(kKey, {"meta", pattern_bytes(200000, 3)});
    auto best = std::chrono::nanoseconds::max();
    for (int i = 0; i < 20; ++i) {
        const auto start = std::chrono::steady_clock::now();
        REQUIRE(store->load(kKey));
        best = std::min(best, std::chrono::nanoseconds(std::chrono::steady_clock::now() - start));
    }
    MESSAGE("200 kB entry: ", best.count() / 1000, " us");
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    CHECK(best < std::chrono::milliseconds(1));
#endif
}
