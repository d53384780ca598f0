// flexc cache: what the kernel cache on disk holds.
#include <memory>

#include <nlohmann/json.hpp>

#include "flexc/command.h"
#include "flexc/compile.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

void print_statistics(const CacheStatistics& statistics, bool json) {
    if (json) {
        return print_json({{"directory", statistics.directory},
                           {"disk_entries", statistics.disk_entries},
                           {"disk_bytes", statistics.disk_bytes}});
    }
    print(stdout, "{}\n{} kernels, {:.1f} MiB\n",
          statistics.directory.empty() ? "the disk cache is off" : statistics.directory,
          statistics.disk_entries, static_cast<double>(statistics.disk_bytes) / (1 << 20));
}

void clear(bool json) {
    const auto before = cache_statistics();
    require(clear_cache());
    if (json) {
        return print_json({{"removed", before.disk_entries}});
    }
    print(stdout, "removed {} kernels from {}\n", before.disk_entries, before.directory);
}

void print_path(bool json) {
    const auto directory = cache_statistics().directory;
    if (json) {
        return print_json({{"directory", directory}});
    }
    if (directory.empty()) {
        fail("the disk cache is off");
    }
    print(stdout, "{}\n", directory);
}

} // namespace

void add_cache(CommandLine program) {
    auto command = program.command("cache", "The kernel cache on disk", "flexc cache stats --json");
    command.require_command();
    const auto add = [&](const char* verb, const char* summary, void (*work)(bool)) {
        auto json = std::make_shared<bool>(false);
        auto sub = command.command(verb, summary, formatted("flexc cache {}", verb));
        sub.json_flag(*json);
        sub.on_run([json, work] { work(*json); });
    };
    add("stats", "How many kernels, how large",
        [](bool json) { print_statistics(cache_statistics(), json); });
    add("clear", "Remove every kernel", clear);
    add("path", "Where it is; FLEXC_CACHE_DIR moves it", print_path);
}

} // namespace flexc::cli
