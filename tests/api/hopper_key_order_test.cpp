// Hopper's forward where keys come first to which most is added: random slopes of both signs and
// functions of the distance, so that tiles come from either end or from the middle.
#include <doctest/doctest.h>

#include <array>
#include <string>

#include "api/hopper_check.h"
#include "random.h"

using namespace flexc;
using flexc::test::Case;

namespace {

constexpr std::array<std::string_view, 4> kMasks = {
    "", "mask_mod = q_idx >= kv_idx\n", "mask_mod = q_idx >= kv_idx and q_idx - kv_idx < 333\n",
    "mask_mod = q_idx >= kv_idx or kv_idx < 200\n"};

void check_order(const std::string& score) {
    test::Random random(test::seed_of_members());
    for (int i = 0; i < 4; ++i) {
        constexpr std::array kHeadDims = {64, 128, 40, 192};
        const std::string buffers =
            "buffer s: f32[H]\nbuffer t: f32[H, N]\nbuffer c: f32[B, KV_LEN]\n";
        Case one = {.text = buffers + std::string(random.pick(kMasks)) + "score_mod = " + score,
                    .dtype = i == 0 ? DType::f16 : DType::bf16,
                    .batch = 2,
                    .heads = 4,
                    .kv_heads = 2,
                    .q_len = random.integer(130, 600),
                    .kv_len = random.integer(600, 900),
                    .head_dim = random.pick(kHeadDims)};
        one.dims = {{"N", 700}};
        one.q_offset = random.chance(50) ? random.integer(0, 300) : 0;
        // The last are large: exponents are beyond what maxima are subtracted from early.
        constexpr std::array kSizes = {0.004, 0.1, 0.5, 40.0};
        const double size = random.pick(kSizes);
        one.reals["s"] = [size](std::int64_t h) { return h % 2 == 0 ? size : -size / 2; };
        test::check_on_hopper(one);
    }
}

} // namespace

TEST_SUITE_BEGIN("hopper");

TEST_CASE("keys in the order of a slope" * doctest::skip()) {
    check_order("score + s[h] * (kv_idx - q_idx)");
}
TEST_CASE("keys in the order of a slope and a table" * doctest::skip()) {
    check_order("score + s[h] * (kv_idx - q_idx) + t[h, min(abs(q_idx - kv_idx), N - 1)]");
}
TEST_CASE("keys in the order of a function of the distance" * doctest::skip()) {
    check_order("score + s[h] * log(1 + abs(q_idx - kv_idx))");
}
TEST_CASE("keys in the order of a table beside a factor" * doctest::skip()) {
    check_order("score * s[h] + t[h, clamp(q_idx - kv_idx + 300, 0, N - 1)]");
}
TEST_CASE("keys in the order of distances beside what keys add" * doctest::skip()) {
    check_order("score - abs(s[h]) * abs(q_idx - kv_idx) + c[b, kv_idx]");
}

TEST_SUITE_END();
