// How far the fast and rough forms of functions are off, on the host: its exponentials and tanh are
// exact, so that what the device's instructions add is not in these bounds.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <doctest/doctest.h>

#include "host_module.h"

namespace {

using namespace flexc;

// Every step-th float of either sign, and the ends.
template <typename Visit> void visit_floats(std::uint32_t step, Visit visit) {
    constexpr std::uint32_t kInfinity = 0x7f800000;
    for (std::uint32_t bits = 0; bits < kInfinity; bits += step) {
        visit(std::bit_cast<float>(bits));
        visit(-std::bit_cast<float>(bits));
    }
    visit(std::numeric_limits<float>::infinity());
    visit(-std::numeric_limits<float>::infinity());
}

using Function = float(float);

} // namespace

TEST_CASE("powers of two by a polynomial are within 2^-18, 0 where hidden and NaN of NaN") {
    const test::HostModule module(
        "namespace mod { struct ForwardSchedule { static constexpr int kPolynomials = 3; }; }\n"
        "#include \"sm90/exponentials.cuh\"\n"
        "extern \"C\" float power(float x) {\n"
        "    return sm90::exp2_polynomial(x);\n}\n"
        "extern \"C\" int count(int columns) {\n"
        "    int found = 0;\n"
        "    for (int i = 0; i < columns; ++i)\n"
        "        found += sm90::is_polynomial(i);\n"
        "    return found;\n}\n");
    auto* const power = module.function<Function>("power");
    double worst = 0;
    // All floats between the smallest normal power and the largest weights.
    const auto check = [&](float x) {
        const double right = std::exp2(static_cast<double>(x));
        worst = std::max(worst, std::abs(power(x) - right) / right);
    };
    for (std::uint32_t bits = 0; bits <= std::bit_cast<std::uint32_t>(126.0F); ++bits) {
        const float size = std::bit_cast<float>(bits);
        if (size < 0x1p-30F) {
            bits += 1023; // they have one power
            continue;
        }
        check(size);
        check(-size);
    }
    CHECK(worst < 0x1p-18);
    CHECK(power(0) == 1);
    for (int whole = -126; whole < 127; ++whole)
        CHECK(power(static_cast<float>(whole)) == std::ldexp(1.0F, whole));
    CHECK(power(-127) == 0);
    CHECK(power(-std::numeric_limits<float>::infinity()) == 0);
    CHECK(power(-1e30F) == 0);
    CHECK(std::isnan(power(std::nanf(""))));
    // What is below normal numbers is no more than the smallest of them.
    for (float x = -127; x < -126; x += 0x1p-10F) {
        CHECK(power(x) >= 0);
        CHECK(power(x) <= 0x1.1p-126F);
    }
    auto* const count = module.function<int(int)>("count");
    for (const int columns : {8, 16, 32, 56})
        CHECK(count(columns) == columns * 3 / 8);
}

TEST_CASE("fast and rough functions of any float are as near as they say") {
    const test::HostModule module("#include \"common/mod_prelude.cuh\"\n"
                                  "extern \"C\" void all(float x, float* y) {\n"
                                  "    y[0] = flexc_fast_softplus(x);\n"
                                  "    y[1] = flexc_rough_erf(x);\n"
                                  "    y[2] = flexc_rough_sigmoid(x);\n"
                                  "    y[3] = flexc_fast_sigmoid(x);\n"
                                  "    y[4] = flexc_tanh(x);\n}\n");
    auto* const all = module.function<void(float, float*)>("all");
    constexpr double kLeast = 1e-37; // smaller results may be flushed
    double relative[5] = {}, absolute[5] = {};
    visit_floats(4099, [&](float x) {
        float got[5];
        all(x, got);
        const auto value = static_cast<double>(x);
        const double small = std::exp(-std::abs(value));
        const double right[] = {std::max(value, 0.0) + std::log1p(small), std::erf(value),
                                1 / (1 + std::exp(-value)), 1 / (1 + std::exp(-value)),
                                std::tanh(value)};
        for (int i = 0; i < 5; ++i) {
            if (static_cast<double>(got[i]) == right[i]) continue;
            const double error = std::abs(static_cast<double>(got[i]) - right[i]);
            CHECK(!std::isnan(error));
            absolute[i] = std::max(absolute[i], error / std::max(1.0, std::abs(right[i])));
            if (std::abs(right[i]) > kLeast)
                relative[i] = std::max(relative[i], error / std::abs(right[i]));
        }
    });
    // Where powers are small, x * log2(e) has been rounded: a part of 2^-24 of the exponent.
    CHECK(relative[0] < 1e-5);
    CHECK(absolute[0] < 1e-6);
    CHECK(relative[1] < 6.5e-5);
    CHECK(absolute[2] < 1e-6);
    CHECK(relative[3] < 1e-5);
    CHECK(relative[4] < 1e-6);
    float of_nan[5];
    all(std::nanf(""), of_nan);
    for (const float x : of_nan)
        CHECK(std::isnan(x));
}
