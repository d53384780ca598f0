// Every operator's CUDA text against its reference, at ordinary and at special values.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "host_module.h"
#include "hostile_reals.h"
#include "ir/interp.h"
#include "replaced.h"
#include "support/text.h"

namespace {

using namespace flexc;

struct Word {
    bool boolean = false;
    long long integer = 0;
    float real = 0;
};
using Function = void(const Word*, Word*);

const char* member(char letter) {
    return letter == 'f' ? "real" : letter == 'i' ? "integer" : "boolean";
}

// A function over words for one operator, integers being `Int`.
std::string wrapper(const ir::OpInfo& info, const std::string& name, const std::string& integer) {
    std::string text(info.cuda);
    const std::string letters = "xyz";
    for (int i = 0; i < info.arity(); ++i) {
        const char letter = info.signature[static_cast<std::size_t>(i)];
        const std::string cast = letter == 'i' ? "(" + integer + ")" : "";
        text = test::replaced(text, std::string("$") + letters[static_cast<std::size_t>(i)],
                              formatted("({}in[{}].{})", cast, i, member(letter)));
    }
    return formatted("extern \"C\" void {}(const Word* in, Word* out) {{ out->{} = {}; }}\n", name,
                     member(info.signature.back()), text);
}

constexpr float kInf = std::numeric_limits<float>::infinity();
const std::vector<float> kReals = {
    0.0f,   -0.0f,  0.5f,  -0.5f, 1.0f,  -1.0f,  1.5f,   2.5f,  -2.5f, 3.0f,  0.1f,
    -0.27f, 0.299f, 0.31f, 7.25f, 20.0f, -17.0f, 100.0f, 1e-4f, kInf,  -kInf, std::nanf("")};
const std::vector<long long> kIntegers = {
    0, 1, -1, 2, -2, 3, 7, -8, 31, 64, 1000, -12345, (1ll << 40) + 5};

bool fits(long long x) { return x >= INT32_MIN && x <= INT32_MAX; }

// Every tuple of operands, up to three.
std::vector<std::vector<ir::Value<double>>> tuples(const ir::OpInfo& info) {
    std::vector<std::vector<ir::Value<double>>> result = {{}};
    for (int i = 0; i < info.arity(); ++i) {
        std::vector<std::vector<ir::Value<double>>> longer;
        for (const auto& tuple : result) {
            const auto add = [&](ir::Value<double> value) {
                longer.push_back(tuple);
                longer.back().push_back(value);
            };
            switch (info.signature[static_cast<std::size_t>(i)]) {
            case 'f':
                for (float x : kReals)
                    add({.real = x});
                break;
            case 'i':
                for (long long x : kIntegers)
                    add({.integer = x});
                break;
            default: add({.boolean = false}); add({.boolean = true});
            }
        }
        result = std::move(longer);
    }
    return result;
}

bool same(double expected, double got) {
    if (std::isnan(expected) || std::isnan(got)) return std::isnan(expected) == std::isnan(got);
    const double wanted = static_cast<float>(expected); // overflows as floats do
    if (std::isinf(wanted) || std::isinf(got)) return wanted == got;
    return std::abs(got - wanted) <= 2e-6 * std::abs(wanted) + 1e-37;
}

} // namespace

TEST_CASE("the CUDA text of every operator means what the reference says") {
    std::string text = "#include \"common/mod_prelude.cuh\"\n"
                       "struct Word { bool boolean; long long integer; float real; };\n";
    for (std::size_t i = 0; i < ir::all_operators().size(); ++i) {
        const ir::OpInfo& info = ir::info(static_cast<ir::Op>(i));
        if (info.is_leaf()) continue;
        text += wrapper(info, formatted("wide_{}", info.name), "long long");
        text += wrapper(info, formatted("narrow_{}", info.name), "int");
    }
    const test::HostModule module(text);

    for (std::size_t i = 0; i < ir::all_operators().size(); ++i) {
        const auto op = static_cast<ir::Op>(i);
        const ir::OpInfo& info = ir::info(op);
        if (info.is_leaf()) continue;
        CAPTURE(info.name);
        auto* const wide = module.function<Function>(formatted("wide_{}", info.name));
        auto* const narrow = module.function<Function>(formatted("narrow_{}", info.name));
        const char result = info.signature.back();
        int failures = 0;
        for (const auto& operands : tuples(info)) {
            const ir::Value<double> expected = ir::apply<double>(op, operands);
            Word in[3], out;
            bool all_fit = true;
            for (std::size_t j = 0; j < operands.size(); ++j) {
                in[j] = {operands[j].boolean, operands[j].integer,
                         static_cast<float>(operands[j].real)};
                all_fit = all_fit && fits(operands[j].integer);
            }
            for (Function* function : {wide, narrow}) {
                // 32 bits are used where operands and result fit.
                if (function == narrow && !(all_fit && fits(expected.integer))) continue;
                function(in, &out);
                const bool right = result == 'f'   ? same(expected.real, out.real)
                                   : result == 'i' ? expected.integer == out.integer
                                                   : expected.boolean == out.boolean;
                if (right || ++failures > 3) continue;
                FAIL_CHECK(formatted(
                    "{} {}({} {} {}, {} {} {}, {} {} {}): expected {} {} {}, got {} {} {}",
                    function == wide ? "wide" : "narrow", info.name, in[0].boolean, in[0].integer,
                    in[0].real, in[1].boolean, in[1].integer, in[1].real, in[2].boolean,
                    in[2].integer, in[2].real, expected.boolean, expected.integer, expected.real,
                    out.boolean, out.integer, out.real));
            }
        }
    }
}

TEST_CASE("CUDA operators of hostile reals stay in their intervals") {
    std::string text = "#include \"common/mod_prelude.cuh\"\n"
                       "struct Word { bool boolean; long long integer; float real; };\n";
    for (const ir::OpInfo& info : ir::all_operators())
        if (test::is_of_reals(info)) text += wrapper(info, std::string(info.name) + "_", "int");
    const test::HostModule module(text);
    test::HostilePoints points(test::first_seed());
    for (std::size_t i = 0; i < ir::all_operators().size(); ++i) {
        const ir::OpInfo& info = ir::all_operators()[i];
        if (!test::is_of_reals(info)) continue;
        auto* const function = module.function<Function>(std::string(info.name) + "_");
        for (int trial = 0; trial < test::trials(20000); ++trial) {
            const test::HostilePoint point = points.next(info.arity());
            Word in[3], out;
            for (std::size_t j = 0; j < 3; ++j)
                in[j].real = point.operands[j];
            function(in, &out);
            test::check_contained(static_cast<ir::Op>(i), point, out.real);
        }
    }
}

TEST_CASE("CUDA text of sin, cos and tan of any float is within 2, 2 and 4 ULP") {
    const test::HostModule module("#include \"common/mod_prelude.cuh\"\n"
                                  "extern \"C\" void all(float x, float* y) {\n"
                                  "    y[0] = flexc_sin(x);\n    y[1] = flexc_cos(x);\n"
                                  "    y[2] = flexc_tan(x);\n}\n");
    auto* const all = module.function<void(float, float*)>("all");
    constexpr double kMost[] = {2, 2, 4};
    double worst[] = {0, 0, 0};
    const auto check = [&](float x) {
        CAPTURE(x);
        const auto value = static_cast<double>(x);
        const double expected[] = {std::sin(value), std::cos(value), std::tan(value)};
        float got[3];
        all(x, got);
        for (int i = 0; i < 3; ++i) {
            if (!std::isfinite(x)) {
                CHECK(std::isnan(got[i]));
                continue;
            }
            const int exponent = std::max(std::ilogb(expected[i]), -126);
            const double ulp = std::ldexp(1.0, exponent - 23);
            const double error = std::abs(static_cast<double>(got[i]) - expected[i]) / ulp;
            worst[i] = std::max(worst[i], error);
            if (!(error <= kMost[i])) FAIL_CHECK("function " << i << ": " << error << " ULP");
        }
    };
    for (float size : test::hostile_sizes()) {
        check(size);
        check(-size);
    }
    for (float x : kReals)
        check(x);
    // Where one way of reducing gives way to the other, and multiples of pi/2.
    for (float x = 71470.0f; x < 71480.0f; x += 0x1p-7f)
        check(x);
    for (int quarters = 0; quarters < 50000; quarters += 7)
        check(static_cast<float>(quarters * 1.5707963267948966));
    test::Random random(test::first_seed());
    for (int trial = 0; trial < test::trials(300000); ++trial) {
        const auto bits = static_cast<std::uint32_t>(random.integer(0, UINT32_MAX));
        float x;
        std::memcpy(&x, &bits, sizeof x);
        check(x);
    }
    MESSAGE("ULP of sin, cos, tan: ", worst[0], ", ", worst[1], ", ", worst[2]);
}

TEST_CASE("32-bit numbers are as far apart as wide ones") {
    const test::HostModule module("#include \"common/mod_prelude.cuh\"\n"
                                  "extern \"C\" long long distance(int x, int y) {\n"
                                  "    return flexc_distance(x, y);\n}\n");
    auto* const distance = module.function<long long(int, int)>("distance");
    constexpr int kLeast = INT32_MIN, kMost = INT32_MAX;
    for (const int x : {kLeast, kLeast + 1, -7, 0, 5, kMost})
        for (const int y : {kLeast, -1, 0, 5, kMost - 1, kMost})
            CHECK(distance(x, y) == std::abs(static_cast<long long>(x) - y));
}

TEST_CASE("clamped differences, and sums inside an extent, are those of 64-bit integers") {
    const test::HostModule module("#include \"common/mod_prelude.cuh\"\n"
                                  "extern \"C\" int clamped(int x, int y, int least, int most) {\n"
                                  "    return flexc_clamped_difference(x, y, least, most);\n}\n"
                                  "extern \"C\" bool inside(long long x, int y, int extent) {\n"
                                  "    return flexc_sum_inside(x, y, extent);\n}\n");
    auto* const clamped = module.function<int(int, int, int, int)>("clamped");
    auto* const inside = module.function<bool(long long, int, int)>("inside");
    test::Random random(test::first_seed());
    const auto of_any_size = [&](int bits) {
        const std::int64_t most = (std::int64_t{1} << random.integer(0, bits)) - 1;
        return random.integer(-most - 1, most);
    };
    constexpr std::int64_t kLeast = INT32_MIN, kMost = INT32_MAX;
    const auto narrow = [&] {
        const std::int64_t beside = of_any_size(8);
        const std::int64_t ends[] = {kLeast + std::abs(beside), kMost - std::abs(beside),
                                     of_any_size(31)};
        return std::clamp(ends[random.integer(0, 2)], kLeast, kMost);
    };
    int wrong = 0;
    for (int trial = 0; trial < test::trials(300000); ++trial) {
        const std::int64_t x = narrow(), y = narrow();
        const std::int64_t least = std::max(-std::abs(of_any_size(31)), kLeast + 1),
                           most = std::min(std::abs(of_any_size(31)), kMost);
        const std::int64_t difference = std::clamp(x - y, least, most);
        wrong += clamped(static_cast<int>(x), static_cast<int>(y), static_cast<int>(least),
                         static_cast<int>(most)) != difference;
        // The other number is near what makes the sum 0, or anything.
        const std::int64_t wide = random.integer(0, 1) ? of_any_size(62) : of_any_size(9) - y;
        const std::int64_t extent = std::min(std::abs(of_any_size(31)), kMost);
        wrong += inside(wide, static_cast<int>(y), static_cast<int>(extent)) !=
                 (wide + y >= 0 && wide + y < extent);
    }
    CHECK(wrong == 0);
}

TEST_CASE("quotients by a reciprocal are those of 64-bit integers") {
    const test::HostModule module("#include \"common/mod_prelude.cuh\"\n"
                                  "extern \"C\" void both(int x, long long y, long long* out) {\n"
                                  "    const Reciprocal by = reciprocal_of(y);\n"
                                  "    out[0] = flexc_floor_divide(x, by, sign_of(y));\n"
                                  "    out[1] = flexc_floor_modulo(x, by, sign_of(y), y);\n"
                                  "    out[2] = flexc_floor_divide<long long>(x, y);\n"
                                  "    out[3] = flexc_floor_modulo<long long>(x, y);\n}\n");
    auto* const both = module.function<void(int, long long, long long*)>("both");
    int wrong = 0;
    const auto check = [&](long long x, long long y) {
        constexpr long long kMost = INT32_MAX - 1;
        if (x < -kMost || x > kMost) return;
        long long out[4];
        both(static_cast<int>(x), y, out);
        if ((out[0] != out[2] || out[1] != out[3]) && ++wrong <= 3)
            FAIL_CHECK(formatted("{} by {}: {} and {} instead of {} and {}", x, y, out[0], out[1],
                                 out[2], out[3]));
    };
    std::vector<long long> special;
    for (int bit = 0; bit <= 53; ++bit)
        for (const long long beside : {-1, 0, 1})
            for (const long long sign : {-1, 1})
                special.push_back(sign * ((1ll << bit) + beside));
    special.push_back(INT32_MAX - 1);
    special.push_back(1 - INT32_MAX);
    test::Random random(test::first_seed());
    const auto of_any_size = [&] {
        const long long most = 1ll << random.integer(0, 53);
        return random.integer(-most, most);
    };
    for (const long long y : special) {
        for (const long long x : special)
            check(x, y);
        // Multiples of the divisor, where quotients change, and their neighbours.
        for (int trial = 0; trial < 200; ++trial) {
            const long long size = std::max(1ll, std::abs(y));
            const long long multiple = of_any_size() % (INT32_MAX / size + 1) * y;
            for (const long long beside : {-1, 0, 1})
                check(multiple + beside, y);
        }
    }
    for (int trial = 0; trial < test::trials(300000); ++trial)
        check(of_any_size() % INT32_MAX, of_any_size());
}

TEST_CASE("the whole number of a square root needs no branch") {
    const test::HostModule module("#include \"common/mod_prelude.cuh\"\n"
                                  "extern \"C\" void both(float x, int* out) {\n"
                                  "    out[0] = flexc_int_of_sqrt(x);\n"
                                  "    out[1] = flexc_to_narrow_int(sqrtf(x));\n}\n"
                                  "extern \"C\" int bounded(float x, int most) {\n"
                                  "    return flexc_bounded_int_of_sqrt(x, most);\n}\n");
    auto* const bounded = module.function<int(float, int)>("bounded");
    auto* const both = module.function<void(float, int*)>("both");
    int wrong = 0;
    const auto check = [&](float x) {
        int out[2];
        both(x, out);
        if (out[0] != out[1] && ++wrong <= 3)
            FAIL_CHECK(formatted("of {}: {} is not {}", x, out[0], out[1]));
        for (const int most : {0, 1, 63, 1000, 4095, 1 << 20})
            if (const int found = bounded(x, most); found != std::min(out[1], most) && ++wrong <= 3)
                FAIL_CHECK(formatted("of {}, at most {}: {}", x, most, found));
    };
    for (const float size : test::hostile_sizes()) {
        check(size);
        check(-size);
    }
    for (const float x : kReals)
        check(x);
    // Squares and their neighbours.
    for (int root = 1; root < 100000; ++root) {
        const float square = static_cast<float>(root) * static_cast<float>(root);
        for (const float x : {std::nextafter(square, 0.0f), square, std::nextafter(square, kInf)})
            check(x);
    }
    test::Random random(test::first_seed());
    for (int trial = 0; trial < test::trials(300000); ++trial) {
        const auto bits = static_cast<std::uint32_t>(random.integer(0, UINT32_MAX));
        float x;
        std::memcpy(&x, &bits, sizeof x);
        if (!std::isnan(x)) check(x); // the host's fmaxf() is not the device's for signalling NaN
    }
}
