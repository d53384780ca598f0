// Entries of the cache, in its folder and in packs: damaged ones are never given back, and what is
// given back is what was put in.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "api/kernel_entry.h"
#include "cache/scratch.h"
#include "cache/store.h"
#include "fuzz.h"

namespace flexc::fuzz {

namespace {

using cache::Entry;
using test::kKey;

const Entry kEntry{"168 0 98304 412.5 0 " + cache::digest_of("source").hex() + " ",
                   test::pattern_bytes(300, 1)};

Corpus entry_corpus() {
    return {cache::encode_entry(kKey, kEntry),
            cache::encode_entry(kKey, {"", ""}),
            cache::encode_entry(test::key_of(2), kEntry),
            cache::encode_entry(test::kForged, kEntry),
            kEntry.metadata,
            kEntry.metadata + "64x128x2"};
}

// An input is an entry, or the metadata of one, which has no magic.
bool is_metadata(std::string_view input) { return !input.starts_with("flexc\r"); }

std::string mutate_entry(const std::string& input, const Corpus& corpus, Random& random) {
    return is_metadata(input) ? mutate_text(input, corpus, random)
                              : mutate_bytes(input, corpus, random);
}

// Only what encode_entry wrote for this key is taken.
void check_loaded(const std::optional<Entry>& loaded, std::string_view bytes) {
    if (!loaded) return;
    count_accepted();
    require(cache::encode_entry(kKey, *loaded) == bytes,
            "an entry was given back that was not put in");
}

// Metadata is the user's own format; with a right checksum it may be anything.
void check_metadata(std::string_view metadata) {
    const auto kernel = api::read_entry({std::string(metadata), "payload"});
    if (!kernel) return;
    count_accepted();
    require(kernel->kernel.cubin == "payload", "the payload has changed");
    const Entry again = api::entry_of(*kernel);
    const auto reread = api::read_entry(again);
    require(reread && api::entry_of(*reread).metadata == again.metadata,
            "metadata does not read back");
}

// One folder for all inputs of a process.
const test::Scratch& scratch() {
    static const test::Scratch folder;
    return folder;
}

void run_entry(std::string_view input) {
    if (is_metadata(input)) return check_metadata(input);
    check_loaded(cache::decode_entry(input, kKey), input);

    const auto store = cache::Store::open(scratch().options());
    std::filesystem::create_directories(scratch().cache());
    std::filesystem::permissions(scratch().cache(), std::filesystem::perms::owner_all);
    const auto path = scratch().cache() / cache::entry_name(kKey.digest);
    std::filesystem::remove(path);
    test::write_file(path, std::string(input));
    std::filesystem::permissions(path, std::filesystem::perms::owner_read |
                                           std::filesystem::perms::owner_write);
    const auto loaded = store->load(kKey);
    check_loaded(loaded, input);
    if (loaded) return;
    // What was damaged gave way to what is put in now.
    store->publish(kKey, kEntry);
    const auto whole = store->load(kKey);
    require(whole && whole->metadata == kEntry.metadata && whole->payload == kEntry.payload,
            "a damaged entry is not replaced");
}

void run_pack(std::string_view input) {
    const auto folder = scratch().path() / "pack";
    std::filesystem::create_directories(folder);
    const auto path = folder / cache::entry_name(kKey.digest);
    test::write_file(path, std::string(input));
    auto options = scratch().options();
    options.disk = false;
    options.pack = folder.string();
    check_loaded(cache::Store::open(options)->load(kKey), input);
    require(test::read_file(path) == input, "a pack was written");
}

} // namespace

const Target kEntries = {.name = "entries",
                         .meaning = "entries of the cache on disk",
                         .cpu_seconds = 1,
                         .corpus = entry_corpus,
                         .mutate = mutate_entry,
                         .run = run_entry};
const Target kPacks = {.name = "packs",
                       .meaning = "packs of compiled kernels",
                       .cpu_seconds = 1,
                       .corpus = entry_corpus,
                       .mutate = mutate_entry,
                       .run = run_pack};

} // namespace flexc::fuzz
