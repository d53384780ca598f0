// Functions of distance in Hopper's backward: random members of what is tabulated by distance, with
// gradients that are folded through them from sums over diagonals.
#include <doctest/doctest.h>

#include <array>
#include <random>

#include "api/hopper_check.h"
#include "distance_program.h"

using namespace flexc;
using flexc::test::Case;

namespace {

Case random_case(test::Random& random, DType dtype) {
    Case one = {.text = test::distance_program(random),
                .dtype = dtype,
                .batch = 2,
                .heads = 4,
                .kv_heads = 2};
    one.dims = {{"N", 70}};
    constexpr std::array kHeadDims = {64, 128, 40, 192};
    one.head_dim = random.pick(kHeadDims);
    one.q_len = random.integer(130, 279);
    one.kv_len = random.integer(140, 339);
    one.q_offset = random.chance(50) ? random.integer(0, 89) : 0;
    one.with_d_lse = random.chance(50);
    one.deterministic = random.chance(33);
    return one;
}

} // namespace

TEST_SUITE_BEGIN("hopper");

TEST_CASE("functions of distance and their gradients are what float64 gives" * doctest::skip()) {
    test::Random random(std::random_device{}());
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
