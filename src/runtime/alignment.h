// Where pieces of memory start: what any type, copy or cache line asks of an address.
#pragma once

#include <cstddef>

#include "support/amounts.h"

namespace flexc::runtime {

inline constexpr std::size_t kAlignment = 256;

inline std::size_t aligned(std::size_t bytes) { return support::rounded_up(bytes, kAlignment); }

} // namespace flexc::runtime
