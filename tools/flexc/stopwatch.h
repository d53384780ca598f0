// Time that passes while something is done.
#pragma once

#include <chrono>

namespace flexc::cli {

template <typename Work> double milliseconds(Work work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
}

} // namespace flexc::cli
