#include "front/library.h"

#include "api/context.h"
#include "flexc/compile.h"

namespace flexc {

std::vector<LibraryEntry> library() {
    std::vector<LibraryEntry> entries;
    for (const front::LibraryMod& mod : front::library())
        entries.push_back({.name = std::string(mod.name),
                           .group = std::string(mod.group),
                           .page = std::string(mod.page),
                           .summary = std::string(mod.summary),
                           .text = std::string(mod.text)});
    return entries;
}

CacheStatistics cache_statistics(const CacheOptions& options) {
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
}

Result<void> clear_cache(const CacheOptions& options) {
    api::Context::instance().kernels.clear();
    const auto store = api::Context::instance().stores.get(options);
    if (store->clear()) return {};
    return Error{ErrorCode::io, "some entries of " + store->directory() + " could not be removed"};
}

} // namespace flexc
