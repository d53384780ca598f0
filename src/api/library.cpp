#include <algorithm>

#include "api/context.h"
#include "flexc/compile.h"
#include "front/library.h"
#include "front/names.h"
#include "support/guarded.h"
#include "support/text.h"

namespace flexc {

namespace {

// Reads the names in the comment "# Also called natten, neighborhood attention."
std::vector<std::string> other_names(std::string_view text) {
    constexpr std::string_view kStart = "\n# Also called ", kBetween = ", ";
    std::vector<std::string> names;
    const std::size_t start = text.find(kStart);
    if (start == text.npos) return names;
    text.remove_prefix(start + kStart.size());
    text = text.substr(0, text.find(".\n"));
    while (!text.empty()) {
        const std::size_t end = std::min(text.find(kBetween), text.size());
        names.emplace_back(text.substr(0, end));
        text.remove_prefix(std::min(end + kBetween.size(), text.size()));
    }
    return names;
}

std::vector<LibraryEntry> all_mods() {
    std::vector<LibraryEntry> entries;
    for (const front::LibraryMod& mod : front::library())
        entries.push_back({.name = std::string(mod.name),
                           .group = std::string(mod.group),
                           .page = std::string(mod.page),
                           .summary = std::string(mod.summary),
                           .text = std::string(mod.text),
                           .also_called = other_names(mod.text)});
    return entries;
}

} // namespace

std::vector<LibraryEntry> library() { return guarded_or(std::vector<LibraryEntry>(), all_mods); }

Result<LibraryEntry> library_mod(std::string_view name) {
    return guarded([&]() -> Result<LibraryEntry> {
        std::string wanted(name);
        std::ranges::transform(wanted, wanted.begin(), [](char c) {
            return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
        });
        std::vector<std::string> names;
        std::vector<LibraryEntry> entries = all_mods();
        for (LibraryEntry& entry : entries) {
            if (entry.name == name) return std::move(entry);
            names.push_back(entry.name);
        }
        for (LibraryEntry& entry : entries) {
            const std::vector<std::string>& others = entry.also_called;
            if (std::ranges::find(others, wanted) != others.end()) return std::move(entry);
            names.insert(names.end(), others.begin(), others.end());
        }
        const std::string nearest = front::nearest_name(wanted, names);
        return Error{ErrorCode::invalid_option,
                     formatted("there is no mod '{}' in the library{}", name,
                               nearest.empty() ? "" : formatted(" (did you mean '{}'?)", nearest))};
    });
}

CacheStatistics cache_statistics(const CacheOptions& options) {
    return guarded_or(CacheStatistics(), [&]() -> CacheStatistics {
        const auto kernels = api::Context::instance().kernels.statistics();
        const auto disk = api::Context::instance().stores.get(options)->statistics();
        return {.memory_hits = kernels.hits + kernels.waits,
                .disk_hits = disk.hits,
                .misses = disk.misses,
                .corrupt = disk.corrupt,
                .evicted = disk.evicted,
                .disk_entries = disk.entries,
                .disk_bytes = disk.bytes,
                .directory = disk.directory};
    });
}

Result<void> clear_cache(const CacheOptions& options) {
    return guarded([&]() -> Result<void> {
        api::Context::instance().kernels.clear();
        api::Context::instance().failures.clear();
        const auto store = api::Context::instance().stores.get(options);
        if (store->clear()) return {};
        return Error{ErrorCode::io,
                     "some entries of " + store->directory() + " could not be removed"};
    });
}

} // namespace flexc
