#include "flexc/host_memory.h"

#include <fstream>
#include <limits>
#include <string>

#include "support/text.h"

namespace flexc::cli {
namespace {

// What new pages can be had of without swapping; the largest number where the system does not tell.
std::uint64_t free_bytes() {
    std::ifstream file("/proc/meminfo");
    std::string key;
    std::uint64_t kibibytes = 0;
    for (std::string rest; file >> key >> kibibytes; std::getline(file, rest)) {
        if (key == "MemAvailable:") {
            return kibibytes << 10;
        }
    }
    return std::numeric_limits<std::uint64_t>::max();
}

} // namespace

Result<void> check_host_memory(std::uint64_t bytes, std::string_view of_what) {
    constexpr std::uint64_t kSmall = 64 << 20; // not worth a look
    if (bytes <= kSmall) {
        return {};
    }
    const auto free = free_bytes();
    if (bytes <= free) {
        return {};
    }
    return Error{ErrorCode::limit,
                 formatted("{} takes {} MiB, and {} MiB of memory are free: make it smaller",
                           of_what, bytes >> 20, free >> 20)};
}

} // namespace flexc::cli
