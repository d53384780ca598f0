// Products and sums of sizes that a caller or a program chooses. They saturate instead of wrapping,
// so that an overflow fails every check of a limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace flexc::support {

template <typename Integer> constexpr Integer times(Integer a, Integer b) {
    Integer result{};
    return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<Integer>::max() : result;
}

template <typename Integer> constexpr Integer plus(Integer a, Integer b) {
    Integer result{};
    return __builtin_add_overflow(a, b, &result) ? std::numeric_limits<Integer>::max() : result;
}

// Rounds bytes up to a multiple of a power of two.
constexpr std::size_t rounded_up(std::size_t bytes, std::size_t alignment) {
    return bytes > SIZE_MAX - (alignment - 1) ? SIZE_MAX
                                              : (bytes + alignment - 1) & ~(alignment - 1);
}

// The product, saturated; no factor is negative.
template <typename Integer, typename... More>
constexpr Integer product(Integer first, More... more) {
    ((first = times(first, static_cast<Integer>(more))), ...);
    return first;
}

} // namespace flexc::support
