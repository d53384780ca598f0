#include <doctest/doctest.h>

#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <functional>

#include "cache/store.h"
#include "scratch.h"

using namespace flexc;
using namespace flexc::test;
using cache::Entry;
using cache::Store;

namespace {

const Entry kEntry{"the metadata", pattern_bytes(600, 7)};
constexpr uid_t kNobody = 65534;

// Ends with `work`'s answer, so that limits and identities of the child are gone with it.
bool in_child(const std::function<bool()>& work) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(work() ? 0 : 1);
    int status = -1;
    ::waitpid(child, &status, 0);
    return status == 0;
}

// Whatever `damage` did: a miss, a count, and whole again after the next publish.
void check_heals(const Scratch& scratch) {
    const auto store = Store::open(scratch.options());
    Listener listener;
    CHECK_FALSE(store->load(kKey, listener.log()));
    CHECK(store->statistics().corrupt == 1);
    CHECK(scratch.files().empty());
    store->publish(kKey, kEntry, listener.log());
    const auto loaded = store->load(kKey, listener.log());
    REQUIRE(loaded);
    CHECK(loaded->payload == kEntry.payload);
    CHECK(listener.warnings == 0);
}

fs::path publish_one(const Scratch& scratch) {
    Store::open(scratch.options())->publish(kKey, kEntry);
    REQUIRE(scratch.files().size() == 1);
    return scratch.files().at(0);
}

} // namespace

TEST_CASE("a truncated entry is a miss and heals, wherever it is cut") {
    const Scratch scratch;
    const fs::path file = publish_one(scratch);
    const std::string whole = read_file(file);
    // Every byte of header and metadata, some of the payload, and all but one byte.
    std::vector<std::size_t> cuts;
    for (std::size_t cut = 0; cut <= cache::kHeaderSize + kEntry.metadata.size() + 1; ++cut)
        cuts.push_back(cut);
    cuts.insert(cuts.end(), {256, 512, whole.size() - 1});
    for (const std::size_t cut : cuts) {
        CAPTURE(cut);
        write_file(file, whole.substr(0, cut));
        check_heals(scratch);
    }
}

TEST_CASE("bytes after the end are damage too") {
    const Scratch scratch;
    const fs::path file = publish_one(scratch);
    write_file(file, read_file(file) + '\0');
    check_heals(scratch);
}

TEST_CASE("any flipped bit is noticed") {
    const Scratch scratch;
    const fs::path file = publish_one(scratch);
    const std::string whole = read_file(file);
    for (std::size_t at = 0; at < whole.size(); ++at) {
        CAPTURE(at);
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
        write_file(file, damaged);
        const auto store = Store::open(scratch.options());
        REQUIRE_FALSE(store->load(kKey));
        REQUIRE_FALSE(fs::exists(file));
    }
}

TEST_CASE("an entry as version 2 wrote it, under today's name, is a miss and heals") {
    const Scratch scratch;
    const fs::path file = publish_one(scratch);
    std::string old("flexc\r\n\x1a\2\0\0\0\x50\0\0\0", 16);
    old.resize(80 + 612, 'x');
    write_file(file, old);
    check_heals(scratch);
}

TEST_CASE("another version in the header is a miss and heals") {
    const Scratch scratch;
    const fs::path file = publish_one(scratch);
    std::string bytes = read_file(file);
    bytes[8] = static_cast<char>(cache::kEntryVersion + 1);
    write_file(file, bytes);
    check_heals(scratch);
}

TEST_CASE("sizes that lie allocate nothing and overflow nothing") {
    const Scratch scratch;
    const fs::path file = publish_one(scratch);
    std::string bytes = read_file(file);
    for (std::size_t at = 56; at < 72; ++at)
        bytes[at] = '\xff'; // of metadata and payload
    write_file(file, bytes);
    check_heals(scratch);
}

TEST_CASE("an entry under another key's name is not given out") {
    const Scratch scratch;
    const fs::path file = publish_one(scratch);
    fs::rename(file, scratch.cache() / cache::entry_name(key_of(2).digest));
    CHECK_FALSE(Store::open(scratch.options())->load(key_of(2)));
}

TEST_CASE("a symbolic link is not followed, and replaced") {
    const Scratch scratch;
    const fs::path file = publish_one(scratch);
    const fs::path target = scratch.path() / "elsewhere";
    fs::rename(file, target);
    fs::create_symlink(target, file);
    check_heals(scratch);
    CHECK(fs::exists(target));
}

TEST_CASE("a pipe in an entry's place neither blocks nor stays") {
    const Scratch scratch;
    const fs::path file = publish_one(scratch);
    fs::remove(file);
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
    check_heals(scratch);
}

TEST_CASE("a huge file in an entry's place is not read") {
    const Scratch scratch;
    fs::resize_file(publish_one(scratch), std::uintmax_t{1} << 40); // no blocks of the disk
    check_heals(scratch);
}

TEST_CASE("a folder in an entry's place is a miss") {
    const Scratch scratch;
    const fs::path file = publish_one(scratch);
    fs::remove(file);
    fs::create_directory(file);
    const auto store = Store::open(scratch.options());
    store->publish(kKey, kEntry);
    CHECK_FALSE(store->load(kKey));
}

TEST_CASE("an entry that others can write is not believed") {
    const Scratch scratch;
    REQUIRE(::chmod(publish_one(scratch).c_str(), 0666) == 0);
    check_heals(scratch);
}

TEST_CASE("a folder that others can write, or a link to one, is not used; one warning") {
    const Scratch scratch;
    const fs::path file = publish_one(scratch);
    const auto refused = [&](const CacheOptions& options, const char* reason) {
        Listener listener;
        const auto store = Store::open(options);
        for (int i = 0; i < 3; ++i) {
            CHECK_FALSE(store->load(kKey, listener.log()));
            store->publish(key_of(2), kEntry, listener.log());
        }
        CHECK(listener.warnings == 1);
        CHECK(listener.last_warning.find(reason) != std::string::npos);
        CHECK(scratch.files().size() == 1);
        CHECK(store->statistics().directory.empty());
    };
    REQUIRE(::chmod(scratch.cache().c_str(), 0777) == 0);
    refused(scratch.options(), "other users can write");
    REQUIRE(::chmod(scratch.cache().c_str(), 0770) == 0);
    refused(scratch.options(), "other users can write");
    REQUIRE(::chmod(scratch.cache().c_str(), 0700) == 0);
    CHECK(Store::open(scratch.options())->load(kKey));

    CacheOptions linked;
    linked.directory = (scratch.path() / "link").string() + "/";
    fs::create_directory_symlink(scratch.cache(), scratch.path() / "link");
    refused(linked, "symbolic link");

    CacheOptions not_a_folder;
    not_a_folder.directory = file.string();
    refused(not_a_folder, "directory");
    not_a_folder.directory = (file / "below").string();
    refused(not_a_folder, "directory");
}

TEST_CASE("another user's folder and another user's entries are not used") {
    if (::geteuid() != 0) return; // only root can make files of others
    const Scratch scratch;
    const fs::path file = publish_one(scratch);
    REQUIRE(::chown(scratch.cache().c_str(), kNobody, kNobody) == 0);
    Listener listener;
    const auto store = Store::open(scratch.options());
    CHECK_FALSE(store->load(kKey, listener.log()));
    store->publish(key_of(2), kEntry, listener.log());
    CHECK(listener.warnings == 1);
    CHECK(listener.last_warning.find("another user") != std::string::npos);
    CHECK(scratch.files().size() == 1);

    REQUIRE(::chown(scratch.cache().c_str(), 0, 0) == 0);
    REQUIRE(::chown(file.c_str(), kNobody, kNobody) == 0);
    check_heals(scratch);
}

TEST_CASE("a folder that cannot be written: what is there is used, one warning for the rest") {
    const Scratch scratch;
    const fs::path file = publish_one(scratch);
    const std::string damaged = (scratch.cache() / cache::entry_name(key_of(3).digest)).string();
    write_file(damaged, "garbage");
    REQUIRE(::chmod(damaged.c_str(), 0600) == 0);
    const bool root = ::geteuid() == 0;
    if (root) {
        for (const auto& path : {scratch.path(), scratch.cache(), file, fs::path(damaged)})
            REQUIRE(::chown(path.c_str(), kNobody, kNobody) == 0);
    }
    REQUIRE(::chmod(scratch.cache().c_str(), 0500) == 0);
    CHECK(in_child([&] {
        // Root may write anywhere.
        if (root && (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)) return false;
        Listener listener;
        const auto store = Store::open(scratch.options());
        for (std::uint64_t i = 10; i < 13; ++i)
            store->publish(key_of(i), kEntry, listener.log());
        bool right = listener.warnings == 1 && store->load(kKey, listener.log());
        for (int i = 0; i < 2; ++i)
            right = right && !store->load(key_of(3), listener.log());
        return right && listener.warnings == 1;
    }));
    CHECK(scratch.files().size() == 2);
    REQUIRE(::chmod(scratch.cache().c_str(), 0700) == 0);
}

TEST_CASE("a folder that cannot be made: one warning") {
    Listener listener;
    const auto store = Store::open({.directory = "/proc/flexc/cache"});
    for (int i = 0; i < 3; ++i) {
        store->publish(kKey, kEntry, listener.log());
        CHECK_FALSE(store->load(kKey, listener.log()));
    }
    CHECK(listener.warnings == 1);
}

TEST_CASE("a write that stops half-way leaves nothing behind; one warning") {
    const Scratch scratch;
    CHECK(in_child([&] {
        const rlimit limit{4096, 4096};
        ::signal(SIGXFSZ, SIG_IGN);
        if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
        Listener listener;
        const auto store = Store::open(scratch.options());
        for (std::uint64_t i = 0; i < 3; ++i)
            store->publish(key_of(i), {"m", pattern_bytes(10000, 1)}, listener.log());
        store->publish(key_of(4), kEntry, listener.log());
        return listener.warnings == 1 && !store->load(key_of(1)) && store->load(key_of(4));
    }));
    CHECK(scratch.files().size() == 1);
}

TEST_CASE("a full disk: what is there is used, nothing is left behind, one warning") {
    const Scratch scratch;
    fs::create_directory(scratch.cache());
    if (::mount("tmpfs", scratch.cache().c_str(), "tmpfs", MS_NOSUID, "size=64k,mode=0700") != 0)
        return; // not permitted here; the case above covers the code
    Listener listener;
    const auto store = Store::open(scratch.options());
    store->publish(kKey, kEntry, listener.log());
    for (std::uint64_t i = 10; i < 13; ++i)
        store->publish(key_of(i), {"m", pattern_bytes(200000, 1)}, listener.log());
    CHECK(listener.warnings == 1);
    CHECK(store->load(kKey));
    CHECK_FALSE(store->load(key_of(10)));
    CHECK(scratch.files().size() == 1);
    CHECK(::umount(scratch.cache().c_str()) == 0);
}
