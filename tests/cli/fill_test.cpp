#include "flexc/fill.h"

#include <cmath>
#include <cstring>

#include <doctest/doctest.h>

#include "flexc/command.h"

using namespace flexc;
using namespace flexc::cli;

namespace {

template <typename T> std::vector<T> values(const std::vector<std::byte>& bytes) {
    std::vector<T> result(bytes.size() / sizeof(T));
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
}

template <typename T> T constant(const char* spec, DType dtype) {
    const std::int64_t shape[] = {1};
    return values<T>(make_contents(parse_fill(spec), dtype, shape, 1)).at(0);
}

} // namespace

TEST_CASE("fills hold what they promise") {
    const std::int64_t shape[] = {2, 5000};
    const auto index =
        values<std::int32_t>(make_contents(parse_fill("index:7"), DType::i32, shape, 1));
    CHECK(*std::min_element(index.begin(), index.end()) == 0);
    CHECK(*std::max_element(index.begin(), index.end()) == 6);

    const auto segments =
        values<std::int64_t>(make_contents(parse_fill("segments:1000"), DType::i64, shape, 1));
    CHECK(segments[999] == 0);
    CHECK(segments[1000] == 1);
    CHECK(segments[5000] == 0);
    CHECK(segments[9999] == 4);

    const auto list =
        values<std::int32_t>(make_contents(parse_fill("list:3:-1:7"), DType::i32, shape, 1));
    CHECK(list[0] == 3);
    CHECK(list[1] == -1);
    CHECK(list[9998] == 7);
    const std::int64_t many[] = {1'048'577};
    const auto long_list =
        values<std::uint8_t>(make_contents(parse_fill("list:0:1:2:3:4"), DType::u8, many, 1));
    CHECK(long_list.back() == 1'048'576 % 5);
    CHECK_THROWS_AS(parse_fill("list"), CommandError);
    CHECK_THROWS_AS(parse_fill("list:1:x"), CommandError);

    const auto normal = values<float>(make_contents(parse_fill("normal:2"), DType::f32, shape, 1));
    double square = 0;
    for (const float x : normal) {
        square += static_cast<double>(x) * x;
    }
    CHECK(std::sqrt(square / 10000) == doctest::Approx(2).epsilon(0.05));

    const auto uniform =
        values<double>(make_contents(parse_fill("uniform:-1:3"), DType::f64, shape, 1));
    CHECK(*std::min_element(uniform.begin(), uniform.end()) >= -1);
    CHECK(*std::max_element(uniform.begin(), uniform.end()) > 2.9);
}

TEST_CASE("half types are rounded to nearest even") {
    CHECK(constant<std::uint16_t>("const:1", DType::f16) == 0x3c00);
    CHECK(constant<std::uint16_t>("const:-2", DType::f16) == 0xc000);
    CHECK(constant<std::uint16_t>("const:0", DType::f16) == 0);
    CHECK(constant<std::uint16_t>("const:65504", DType::f16) == 0x7bff);
    CHECK(constant<std::uint16_t>("const:2049", DType::f16) == 0x6800);
    CHECK(constant<std::uint16_t>("const:2051", DType::f16) == 0x6802);
    CHECK(constant<std::uint16_t>("const:0.99999", DType::f16) == 0x3c00);
    CHECK(constant<std::uint16_t>("const:5.9604645e-8", DType::f16) == 0x0001);
    CHECK(constant<std::uint16_t>("const:6.103515625e-5", DType::f16) == 0x0400);
    CHECK(constant<std::uint16_t>("const:1", DType::bf16) == 0x3f80);
    CHECK(constant<std::uint16_t>("const:257", DType::bf16) == 0x4380);
    CHECK(constant<std::uint16_t>("const:259", DType::bf16) == 0x4382);
}

TEST_CASE("a long fill repeats, whole") {
    const std::int64_t shape[] = {3'000'001};
    const auto bytes = make_contents(parse_fill("uniform:1:2"), DType::f32, shape, 1);
    for (const float x : values<float>(bytes)) {
        REQUIRE(x >= 1);
    }
}

TEST_CASE("wrong fills are usage errors") {
    for (const char* text : {"", "normal:", "normal:1:2", "uniform:1", "uniform:2:1", "index:0",
                             "index:x", "segments:0", "const", "poisson:1"}) {
        CAPTURE(text);
        CHECK_THROWS_AS(parse_fill(text), CommandError);
    }
}
