// The seed of a random test, printed so that a failure can be repeated.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>

#include <doctest/doctest.h>

namespace flexc::test {

// Another one for each call; with FLEXC_TEST_SEED, that one.
inline std::uint32_t fresh_seed() {
    const char* const given = std::getenv("FLEXC_TEST_SEED");
    const auto seed = given != nullptr
                          ? static_cast<std::uint32_t>(std::strtoul(given, nullptr, 10))
                          : std::random_device{}();
    MESSAGE("FLEXC_TEST_SEED=" << seed);
    return seed;
}

} // namespace flexc::test
