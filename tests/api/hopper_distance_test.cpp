// Functions of distance in Hopper's backward: random members of what is tabulated by distance, with
// gradients that are folded through them from sums over diagonals.
#include <doctest/doctest.h>

#include <random>

#include "api/hopper_check.h"
#include "distance_program.h"

using namespace flexc;
using flexc::test::Case;

namespace {

Case random_case(std::mt19937& random, DType dtype) {
    Case one = {.text = test::distance_program(random),
                .dtype = dtype,
                .batch = 2,
                .heads = 4,
                .kv_heads = 2};
    one.dims = {{"N", 70}};
    constexpr int kHeadDims[] = {64, 128, 40, 192};
    one.head_dim = kHeadDims[random() % 4];
    one.q_len = 130 + static_cast<int>(random() % 150);
    one.kv_len = 140 + static_cast<int>(random() % 200);
    one.q_offset = static_cast<int>(random() % 2 * (random() % 90));
    one.with_d_lse = random() % 2 == 0;
    one.deterministic = random() % 3 == 0;
    return one;
}

} // namespace

TEST_SUITE_BEGIN("hopper");

TEST_CASE("functions of distance and their gradients are what float64 gives" * doctest::skip()) {
    std::mt19937 random(std::random_device{}());
    for (int i = 0; i < 24; ++i)
        test::check_on_hopper(random_case(random, i % 3 == 0 ? DType::f16 : DType::bf16));
}

// The sums are divided by what a score is multiplied with.
TEST_CASE(
    "a factor of the score that is 0 for some heads leaves gradients by distance as they are" *
    doctest::skip()) {
    for (const double factor : {0.0, 1e-35, -2.0, 1e-6}) {
        Case one = {.text = "buffer s: f32[H] grad\nbuffer t: f32[H, 50] grad\n"
                            "score_mod = score * s[h] + t[h, min(abs(q_idx - kv_idx), 49)]",
                    .dtype = DType::bf16,
                    .q_len = 200,
                    .kv_len = 230,
                    .head_dim = 64};
        one.reals["s"] = [factor](std::int64_t h) { return h % 2 == 0 ? factor : 1.0; };
        test::check_on_hopper(one);
    }
}

TEST_SUITE_END();
