// Sinks against the oracle, and their gradients against differences of what the forward gives.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "harness.h"
#include "random_program.h"

using namespace flexc;
using namespace flexc::test;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Problem odd_shape() {
    return {.batch = 2,
            .heads = 4,
            .kv_heads = 2,
            .q_len = 71,
            .kv_len = 45,
            .head_dim = 24,
            .head_dim_v = 17};
}

void add_d_lse(Problem& problem) {
    problem.d_lse.clear();
    for (std::int64_t i = 0; i < problem.batch * problem.heads * problem.q_len; ++i)
        problem.d_lse.push_back(static_cast<double>(i % 7) / 4 - 0.75);
}

// What the gradients are of: the sum of o * d_out and lse * d_lse.
double loss(const Answer& answer, const Problem& problem) {
    double sum = 0;
    for (std::size_t i = 0; i < answer.o.size(); ++i)
        sum += answer.o[i] * problem.d_out[i];
    for (std::size_t i = 0; i < problem.d_lse.size(); ++i)
        if (answer.lse[i] != -kInfinity) sum += answer.lse[i] * problem.d_lse[i];
    return sum;
}

void check_all(const std::string& text, const Problem& shape = odd_shape()) {
    CAPTURE(text);
    const ir::Program program = program_of(text);
    Problem problem = make_problem(program, shape, 3, {{"N", 81}});
    for (const bool with_d_lse : {false, true}) {
        if (with_d_lse) add_d_lse(problem);
        const Answer expected = attention_oracle(program, problem);
        for (const RunOptions& options : {RunOptions{},
                                          {.layout = MemoryLayout::scattered},
                                          {.dtype = DType::bf16, .threads = 5}})
            check_close(run(program, problem, options), expected, options);
    }
}

} // namespace

TEST_CASE("sinks of many forms") {
    for (const char* text :
         {"sink = 0.5", "sink = -inf", "sink = 2",
          "buffer sinks: f32[H] grad\nsink = sinks[h]\nmask_mod = q_idx >= kv_idx",
          "buffer sinks: bf16[H] grad\nsink = sinks[h] * 0.5 + 1\nmask_mod = q_idx >= kv_idx",
          "buffer a: f32[H] grad\nbuffer c: f32[H] grad\nsink = a[h] * 0.1 * q_idx + c[h]",
          "buffer t: f32[B, H, Q_LEN] grad\nscore_mod = score * 1.5\nsink { x = t[b, h, q_idx]\n "
          "tanh(x) * 3 }",
          "buffer w: f32[] grad\nparam p: f32 = 0.25\nsink = w * p",
          "buffer w: f32[H_KV] grad\nsink = w[h_kv] + w[h % H_KV] * w[0]",
          "buffer a: f32[H] grad\nscore_mod = score + a[h]\nsink = a[h]",
          "buffer a: f32[H, Q_LEN, KV_LEN] grad\nscore_mod = score + a[h, q_idx, kv_idx]\nsink = "
          "a[h, q_idx, 3]",
          "buffer rel: f32[N] grad\nscore_mod = score + rel[q_idx - kv_idx + KV_LEN - 1]\nsink = "
          "rel[q_idx] * rel[h]",
          "buffer a: f32[B, KV_LEN] grad\nscore_mod = score + a[b, kv_idx]\nsink = a[b, q_idx]",
          "buffer a: f32[H, N] grad\nsink = sum(i in 0..N: a[h, i] * a[h, q_idx]) * 0.1",
          "buffer a: f32[H, 3] grad\nsink = log(sum(i in 0..3: exp(a[h, i])))",
          "buffer a: f32[Q_LEN] grad\nsink = sqrt(relu(a[q_idx]))",
          "buffer a: f32[4] grad\nsink = a[q_idx - 5]",
          "buffer a: f32[H] grad\nsink = where(q_idx % 3 == 0, -inf, a[h])",
          "buffer a: f32[H] grad\nsink = a[h]\nmask_mod = q_idx > 40 and kv_idx < 3"})
        check_all(text);
}

TEST_CASE("random programs with sinks") {
    for (const std::uint64_t seed : seeds(40)) {
        CAPTURE(seed);
        Random random(seed);
        const ir::Program program =
            random_program(seed, {.operators = 8, .kinks = false, .steps = false});
        Problem shape{.batch = random.integer(1, 2), .heads = 2, .kv_heads = 1};
        shape.q_len = random.integer(1, 9);
        shape.kv_len = random.integer(1, 40);
        shape.head_dim_v = 4;
        Problem problem = make_problem(program, shape, seed, {{"N", random.integer(1, 9)}});
        if (random.chance(50)) add_d_lse(problem);
        check_close(run(program, problem), attention_oracle(program, problem), {});
    }
}

TEST_CASE("the oracle's gradients of sinks are differences of its losses") {
    const ir::Program program =
        program_of("buffer a: f32[H] grad\nbuffer c: f32[H] grad\nbuffer k: f32[KV_LEN] grad\n"
                   "score_mod = score * (1 + 0.1 * a[h]) + k[kv_idx]\n"
                   "sink = a[h] * q_idx * 0.2 + c[h] * c[h] + k[2]\nmask_mod = q_idx >= kv_idx");
    Problem problem = make_problem(program,
                                   {.batch = 1,
                                    .heads = 2,
                                    .kv_heads = 1,
                                    .q_len = 5,
                                    .kv_len = 6,
                                    .head_dim = 4,
                                    .head_dim_v = 3},
                                   7);
    add_d_lse(problem);
    const Answer answer = attention_oracle(program, problem);
    constexpr double kStep = 1e-5;
    const auto check_values = [&](std::vector<double>& values, const std::vector<double>& slopes) {
        for (std::size_t i = 0; i < values.size(); ++i) {
            const double at = values[i];
            values[i] = at + kStep;
            const double above = loss(attention_oracle(program, problem), problem);
            values[i] = at - kStep;
            const double below = loss(attention_oracle(program, problem), problem);
            values[i] = at;
            CHECK((above - below) / (2 * kStep) == doctest::Approx(slopes[i]).epsilon(1e-6));
        }
    };
    check_values(problem.q, answer.dq);
    check_values(problem.k, answer.dk);
    check_values(problem.v, answer.dv);
    for (std::size_t i = 0; i < program.buffers.size(); ++i)
        check_values(problem.buffers[i].reals, answer.d_buffers.at(program.buffers[i].name));
}

TEST_CASE("a row that sees nothing but its sink") {
    const ir::Program program =
        program_of("buffer a: f32[H] grad\nsink = a[h] / (q_idx - 3.0)\nmask_mod = q_idx != 3");
    Problem problem = make_problem(program, odd_shape(), 5);
    add_d_lse(problem);
    const Outcome outcome = run(program, problem);
    CHECK(outcome.answer.lse[3] == -kInfinity);
    for (std::size_t d = 0; d < 17; ++d)
        CHECK(outcome.answer.o[3 * 17 + d] == 0);
    for (std::size_t d = 0; d < 24; ++d)
        CHECK(outcome.answer.dq[3 * 24 + d] == 0);
    for (const double x : outcome.answer.d_buffers.at("a"))
        CHECK(std::isfinite(x));
}

TEST_CASE("sinks and scores of any size") {
    for (const double score : {0.0, 1e4, 1e10, -1e30})
        for (const double sink : {0.0, 1e4, -1e4, 1e10, -1e30, -kInfinity}) {
            CAPTURE(score);
            CAPTURE(sink);
            const ir::Program program = program_of("buffer s: f32[H] grad\nbuffer w: f32[H] grad\n"
                                                   "score_mod = score * 0 + s[h]\nsink = w[h]");
            Problem problem = make_problem(program, odd_shape(), 5);
            problem.rounds_scores = true;
            problem.buffers[0].reals.assign(4, static_cast<double>(static_cast<float>(score)));
            problem.buffers[1].reals.assign(4, static_cast<double>(static_cast<float>(sink)));
            for (const bool with_d_lse : {false, true}) {
                if (with_d_lse) add_d_lse(problem);
                for (const DType dtype : {DType::f32, DType::f16}) {
                    const RunOptions options{.dtype = dtype};
                    check_close(run(program, problem, options), attention_oracle(program, problem),
                                options);
                }
            }
        }
}

TEST_CASE("a sink's gradient has the same bits on any number of threads") {
    const ir::Program program =
        program_of("buffer a: f32[H] grad\nscore_mod = score + a[0] * 0.1\nsink = a[h] * q_idx * "
                   "0.01");
    Problem shape = odd_shape();
    shape.kv_len = 700;
    const Problem problem = make_problem(program, shape, 9);
    const std::vector<float> one = run(program, problem, {.threads = 1}).bits();
    for (const int threads : {2, 3, 8})
        CHECK(run(program, problem, {.threads = threads}).bits() == one);
}

TEST_CASE("reads of a sink outside its buffer are reported") {
    const auto reported = [](const std::string& text) {
        const ir::Program program = program_of(text);
        const Problem problem = make_problem(program, odd_shape(), 1, {{"N", 20}});
        return run(program, problem, {.report_out_of_range = true}).out_of_range;
    };
    CHECK(reported("buffer a: f32[N]\nsink = a[q_idx]"));
    CHECK_FALSE(reported("buffer a: f32[N]\nsink = a[q_idx % 20]"));
    CHECK_FALSE(reported("buffer a: f32[N]\nsink = a[q_idx] if q_idx < 20 else 0.0"));
}
