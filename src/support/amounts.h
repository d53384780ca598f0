// Products and sums of sizes that a caller or a program decides. What does not fit stays at the
// greatest value, which no check of a limit lets through, instead of wrapping to a small one.
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

// Bytes up to the next multiple of a power of two.
constexpr std::size_t rounded_up(std::size_t bytes, std::size_t alignment) {
    return bytes > SIZE_MAX - (alignment - 1) ? SIZE_MAX
                                              : (bytes + alignment - 1) & ~(alignment - 1);
}

// The more of them, none negative.
template <typename Integer, typename... More>
constexpr Integer product(Integer first, More... more) {
    ((first = times(first, static_cast<Integer>(more))), ...);
    return first;
}

} // namespace flexc::support
