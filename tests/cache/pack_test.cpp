#include <doctest/doctest.h>

#include <sys/stat.h>
#include <unistd.h>

#include "cache/pack.h"
#include "cache/store.h"
#include "scratch.h"

using namespace flexc;
using namespace flexc::test;
using cache::Entry;
using cache::Store;

namespace {

const Entry kEntry{"meta", pattern_bytes(5000, 1)};

struct Pack {
    Scratch scratch;
    fs::path folder = scratch.path() / "pack";
    fs::path file = folder / cache::entry_name(kKey.digest);
    CacheOptions options = scratch.options();

    Pack() {
        fs::create_directory(folder);
        write_file(file, cache::encode_entry(kKey, kEntry));
        options.pack = folder.string();
    }
};

} // namespace

TEST_CASE("a pack is read before the cache and without one, whoever may write to it") {
    const Pack pack;
    fs::permissions(pack.folder, fs::perms::all);
    fs::permissions(pack.file, fs::perms::all);
    CacheOptions no_disk = pack.options;
    no_disk.disk = false;
    for (const CacheOptions& options : {pack.options, no_disk}) {
        const auto entry = Store::open(options)->load(kKey);
        REQUIRE(entry);
        CHECK(entry->metadata == kEntry.metadata);
        CHECK(entry->payload == kEntry.payload);
    }
    CHECK_FALSE(fs::exists(pack.scratch.cache()));
}

TEST_CASE("what a pack has not comes from the cache") {
    const Pack pack;
    const auto store = Store::open(pack.options);
    CHECK_FALSE(store->load(key_of(2)));
    store->publish(key_of(2), {"m", "p"});
    const auto entry = store->load(key_of(2));
    REQUIRE(entry);
    CHECK(entry->payload == "p");
    CHECK(std::distance(fs::directory_iterator(pack.folder), {}) == 1);
}

TEST_CASE("a damaged file of a pack is not used, is reported and stays") {
    const Pack pack;
    const std::string whole = read_file(pack.file);
    for (const std::size_t at : {std::size_t{0}, cache::kHeaderSize - 1, whole.size() - 1}) {
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ 1);
        write_file(pack.file, damaged);
        Listener listener;
        CHECK_FALSE(Store::open(pack.options)->load(kKey, listener.log()));
        CHECK(listener.warnings == 1);
        CHECK(listener.last_warning.find(pack.file.string()) != std::string::npos);
        CHECK(read_file(pack.file) == damaged);
    }
    write_file(pack.file, cache::encode_entry(kForged, kEntry)); // of another program
    CHECK_FALSE(Store::open(pack.options)->load(kKey));
}

TEST_CASE("a pipe or a device in a pack neither blocks nor fills memory") {
    const Pack pack;
    ::alarm(30);
    for (const bool is_pipe : {true, false}) {
        fs::remove(pack.file);
        if (is_pipe)
            REQUIRE(::mkfifo(pack.file.c_str(), 0600) == 0);
        else
            fs::create_symlink("/dev/zero", pack.file);
        Listener listener;
        CHECK_FALSE(Store::open(pack.options)->load(kKey, listener.log()));
        CHECK(listener.warnings == 1);
        CHECK(listener.last_warning.find(pack.file.string()) != std::string::npos);
    }
    ::alarm(0);
}

TEST_CASE("a pack that is missing, a file, or of another version of flexc: one warning") {
    const Pack pack;
    const fs::path old = pack.scratch.path() / "old";
    fs::create_directory(old);
    write_file(old / (std::string(32, 'a') + ".v2"), "an older flexc's");
    for (const fs::path& path : {pack.scratch.path() / "missing", pack.file, old}) {
        CacheOptions options = pack.options;
        options.pack = path.string();
        Listener listener;
        const auto store = Store::open(options);
        for (int i = 0; i < 3; ++i)
            CHECK_FALSE(store->load(kKey, listener.log()));
        CHECK(listener.warnings == 1);
        CHECK(listener.last_warning.find(path.string()) != std::string::npos);
    }
    CHECK(cache::check_pack(pack.folder.string()).kernels == 1);
}
