// The attention oracle itself.
#include <doctest/doctest.h>

#include <string>

#include "harness.h"

using namespace flexc;
using flexc::test::Answer;
using flexc::test::Problem;

TEST_CASE("the oracle gives the same bits on any number of threads") {
    const std::string text =
        "buffer t: f32[9] grad\nbuffer s: f32[H] grad\n"
        "score_mod = score * s[h] + t[clamp(q_idx - kv_idx + 4, 0, 8)]\nsink = s[h] * 3\n"
        // The first rows of some heads see nothing.
        "mask_mod = q_idx >= kv_idx + h";
    const ir::Program program = test::program_of(text);
    const Problem problem = test::make_problem(
        program, {.batch = 3, .heads = 4, .kv_heads = 2, .q_len = 13, .kv_len = 17, .q_offset = 1},
        1);
    const Answer one = test::attention_oracle(program, problem, 1);
    for (const int threads : {2, 5, 40}) {
        const Answer other = test::attention_oracle(program, problem, threads);
        CHECK(other.o == one.o);
        CHECK(other.lse == one.lse);
        CHECK(other.dq == one.dq);
        CHECK(other.dk == one.dk);
        CHECK(other.dv == one.dv);
        CHECK(other.dk_absolute == one.dk_absolute);
        CHECK(other.d_buffers == one.d_buffers);
        CHECK(other.d_buffers_absolute == one.d_buffers_absolute);
        CHECK(other.margin == one.margin);
    }
}

TEST_CASE("without a backward the oracle finds the same values and no gradients") {
    const ir::Program program =
        test::program_of("buffer s: f32[H] grad\nscore_mod = tanh(score) * s[h]");
    Problem problem =
        test::make_problem(program, {.heads = 2, .kv_heads = 1, .q_len = 5, .kv_len = 7}, 1);
    const Answer both = test::attention_oracle(program, problem);
    problem.backward = false;
    const Answer forward = test::attention_oracle(program, problem);
    CHECK(forward.o == both.o);
    CHECK(forward.lse == both.lse);
    CHECK(forward.max_scores == both.max_scores);
    CHECK(forward.dq == std::vector<double>(both.dq.size(), 0));
    CHECK(forward.d_buffers.at("s") == std::vector<double>(2, 0));
}
