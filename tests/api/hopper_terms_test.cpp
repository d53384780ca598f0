// Gradients of the terms of sums in Hopper's backward: random members of what is summed over a tile
// for one term after another.
#include <doctest/doctest.h>

#include <string>

#include "api/hopper_check.h"
#include "term_program.h"

using namespace flexc;
using flexc::test::Case;

TEST_SUITE_BEGIN("hopper");

TEST_CASE("gradients of the terms of sums are what float64 gives" * doctest::skip()) {
    test::Random random(test::seed_of_members());
    for (int i = 0; i < 12; ++i) {
        Case one = {.text = test::term_program(random), .dims = {{"R", random.integer(5, 24)}}};
        test::draw_backward_call(random, one);
        test::demand_backward(one);
        test::check_on_hopper(one);
    }
}

TEST_CASE("so are those of published biases, where many elements meet at few addresses" *
          doctest::skip()) {
    test::Random random(test::seed_of_members());
    for (const std::string score :
         {"score + sum(i in 0..16: w[h, i] * relu(m[i] * log(max(q_idx - kv_idx, 0) + 1) / "
          "log(max(q_idx, 64) + 1) + n[i]))",
          "score + sum(i in 0..16: w[h, i] * exp(-((0.02 * ((q_idx * 7 + kv_idx * 3) % 90) - "
          "m[i]) * n[i]) ** 2))",
          "score * sum(i in 0..16: w[h, i] * m[i])",
          "score + sum(i in 0..16: u[h, q_idx, i] * v[h, kv_idx, i])"}) {
        Case one = {.text = "buffer w: f32[H, 16] grad\nbuffer m: f32[16] grad\n"
                            "buffer n: f32[16] grad\nbuffer u: bf16[H, Q_LEN, 16] grad\n"
                            "buffer v: bf16[H, KV_LEN, 16] grad\nscore_mod = " +
                            score,
                    .dtype = DType::bf16,
                    .batch = 1,
                    .heads = 2,
                    .kv_heads = 2,
                    .q_len = random.integer(600, 900),
                    .kv_len = random.integer(600, 900),
                    .head_dim = 64,
                    .backward_kernel = BackwardKernel::specialized};
        test::check_on_hopper(one);
    }
}

TEST_SUITE_END();
