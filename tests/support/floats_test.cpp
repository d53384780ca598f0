#include "support/floats.h"

#include <cmath>
#include <limits>
#include <random>

#include <doctest/doctest.h>

using namespace flexc::support;

namespace {

// Every number of eight bits is its own, and any float becomes one of the two around it, the
// nearer.
template <typename Format> void check_eight_bits(float largest) {
    for (int code = 0; code < 256; ++code) {
        const auto bits = static_cast<std::uint8_t>(code);
        const float value = Format::widen(bits);
        if (std::isnan(value))
            CHECK(std::isnan(Format::widen(Format::narrow(value))));
        else
            CHECK(Format::narrow(value) == bits);
    }
    std::mt19937 random(7);
    std::uniform_real_distribution<float> exponent(-20, std::log2(largest));
    for (int trial = 0; trial < 100000; ++trial) {
        const float value = (random() % 2 == 0 ? 1.0f : -1.0f) * std::exp2(exponent(random));
        const std::uint8_t bits = Format::narrow(value);
        const float error = std::fabs(Format::widen(bits) - value);
        for (const int other : {bits - 1, bits + 1}) {
            const float neighbour = Format::widen(static_cast<std::uint8_t>(other));
            if (std::isfinite(neighbour)) REQUIRE(error <= std::fabs(neighbour - value));
        }
    }
}

} // namespace

TEST_CASE("floats of eight bits are narrowed to the nearest") {
    check_eight_bits<E4m3>(448);
    check_eight_bits<E5m2>(57344);
}

TEST_CASE("e4m3 saturates, e5m2 has infinities") {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (const float value : {448.0f, 449.0f, 1e30f, kInfinity}) {
        CHECK(E4m3::widen(E4m3::narrow(value)) == 448.0f);
        CHECK(E4m3::widen(E4m3::narrow(-value)) == -448.0f);
    }
    CHECK(E5m2::widen(E5m2::narrow(1e6f)) == kInfinity);
    CHECK(E5m2::widen(E5m2::narrow(-kInfinity)) == -kInfinity);
}
