// Functions of distance in Hopper's backward: random members of what is tabulated by distance, with
// gradients that are folded through them from sums over diagonals.
#include <doctest/doctest.h>

#include <array>
#include <string>
#include <utility>

#include "api/hopper_check.h"
#include "distance_program.h"

using namespace flexc;
using flexc::test::Case;

namespace {

// Tables have 70 places.
Case random_case(test::Random& random, std::string text) {
    Case one = {.text = std::move(text), .dims = {{"N", 70}}};
    test::draw_backward_call(random, one);
    return one;
}

// A program whose elements add no multiple of dS to what they read by distance: sums are over the
// diagonals of a tile beside that of dS, or over tables from there.
std::string weighted_program(test::Random& random) {
    const std::string extent = std::to_string(random.integer(60, 400));
    constexpr std::array kTypes = {"f32", "f16", "bf16"};
    const std::string table =
        std::string("buffer t: ") + random.pick(kTypes) + "[H, " + extent + "] grad\n";
    // Some places are outside.
    const std::array<std::string, 4> reads = {
        "t[h, q_idx - kv_idx + " + extent + " // 2]", "t[h, clamp(kv_idx - q_idx, -40, 41) + 40]",
        "t[h, min(abs(q_idx - kv_idx), " + extent + " - 1)]", "t[h, max(q_idx - kv_idx, 0)]"};
    const std::string read = random.pick(reads);
    const std::array<std::string, 8> scores = {
        "score * " + read,
        "score + g[b, h, q_idx % Q_LEN] * " + read,
        "score + k[h, kv_idx] * exp(" + read + ")",
        "8 * tanh(score * (1 + " + read + ") / 8)",
        "score * (1 + 0.1 * (q_idx % 3) * kv_idx) + tanh(" + read + ") * a[h]",
        "score * (" + read + " - t[h, min(abs(q_idx - kv_idx), 7)])",
        "score * " + read + " + sigmoid(" + read + ")",
        "score * (" + read + " + u[q_idx // 16 % 5, kv_idx // 8 % 7])"};
    constexpr std::array kMasks = {"", "\nmask_mod = q_idx + 30 >= kv_idx",
                                   "\nmask_mod = abs(q_idx - kv_idx) < 70",
                                   "\nmask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2"};
    return table +
           "buffer g: f32[B, H, Q_LEN] grad\nbuffer k: bf16[H, KV_LEN] grad\n"
           "buffer a: f32[H] grad\nbuffer u: f32[5, 7] grad\nscore_mod = " +
           random.pick(scores) + random.pick(kMasks);
}

Case weighted_case(test::Random& random) {
    Case one = {.text = weighted_program(random)};
    test::draw_backward_call(random, one);
    if (!test::has_block_mask(one) && !one.deterministic) test::demand_backward(one);
    return one;
}

} // namespace

TEST_SUITE_BEGIN("hopper");

TEST_CASE("functions of distance and their gradients are what float64 gives" * doctest::skip()) {
    test::Random random(test::seed_of_members());
    for (int i = 0; i < 24; ++i)
        test::check_on_hopper(random_case(random, test::distance_program(random)));
}

TEST_CASE("sums of learned terms that are functions of distance" * doctest::skip()) {
    test::Random random(test::seed_of_members());
    for (int i = 0; i < 12; ++i) {
        Case one = random_case(random, test::program_of_terms(random));
        test::demand_backward(one);
        test::check_on_hopper(one);
    }
}

TEST_CASE("reads by distance whose elements add no multiple of dS" * doctest::skip()) {
    test::Random random(test::seed_of_members());
    for (int i = 0; i < 16; ++i)
        test::check_on_hopper(weighted_case(random));
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
