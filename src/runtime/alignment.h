// Where pieces of memory start: what any type, copy or cache line asks of an address.
#pragma once

#include <cstddef>

namespace flexc::runtime {

inline constexpr std::size_t kAlignment = 256;

inline std::size_t aligned(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

} // namespace flexc::runtime
