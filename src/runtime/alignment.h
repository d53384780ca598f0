// Alignment of pieces of memory: enough for any type, for vectorized copies and for cache lines.
#pragma once

#include <cstddef>

#include "support/amounts.h"

namespace flexc::runtime {

inline constexpr std::size_t kAlignment = 256;

inline std::size_t aligned(std::size_t bytes) { return support::rounded_up(bytes, kAlignment); }

} // namespace flexc::runtime
