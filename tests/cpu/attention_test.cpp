// Forward and backward against the oracle: sizes, layouts, types, masks and captured buffers.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "harness.h"

using namespace flexc;
using namespace flexc::test;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// D and DV are never what a vector likes here.
Problem odd_shape() {
    return {.batch = 2,
            .heads = 4,
            .kv_heads = 2,
            .q_len = 37,
            .kv_len = 45,
            .head_dim = 24,
            .head_dim_v = 17};
}

} // namespace

TEST_CASE("plain attention of any size") {
    for (const auto& [q_len, kv_len, dim, dim_v] : {std::array{1, 1, 1, 1},
                                                    {1, 300, 64, 64},
                                                    {130, 1, 3, 5},
                                                    {65, 257, 17, 80},
                                                    {64, 256, 256, 256}}) {
        CAPTURE(q_len);
        check("score_mod = score", {.batch = 1,
                                    .heads = 2,
                                    .kv_heads = 1,
                                    .q_len = q_len,
                                    .kv_len = kv_len,
                                    .head_dim = dim,
                                    .head_dim_v = dim_v});
    }
}

TEST_CASE("every layout and element type") {
    const std::string text = "score_mod = score * 1.25 + 0.1 * (kv_idx - q_idx)";
    for (MemoryLayout layout :
         {MemoryLayout::contiguous, MemoryLayout::heads_inside, MemoryLayout::padded,
          MemoryLayout::reversed, MemoryLayout::scattered})
        for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
            CAPTURE(static_cast<int>(layout));
            CAPTURE(name(dtype));
            check(text, odd_shape(), {.dtype = dtype, .layout = layout});
        }
}

TEST_CASE("masks") {
    Problem shape = odd_shape();
    shape.q_len = 150;
    shape.kv_len = 290;
    for (const char* mask :
         {"q_idx >= kv_idx", "q_idx >= kv_idx and q_idx - kv_idx <= 24", "abs(q_idx - kv_idx) < 5",
          "q_idx + 70 >= kv_idx", "kv_idx >= 100", "(q_idx + kv_idx) % 3 == 0", "kv_idx < h * 60",
          "q_idx % 2 == 0 and kv_idx <= q_idx", "false", "q_idx >= 149 and kv_idx == 289",
          "kv_idx < 77 or q_idx >= kv_idx", "kv_idx < 77 + 50 * b and q_idx >= 3"})
        check(std::string("mask_mod = ") + mask, shape);
}

TEST_CASE("rows with nothing visible give zeros, and -inf hides as a mask does") {
    const std::string text = "score_mod = score if q_idx != 3 and kv_idx > 2 else -inf";
    const ir::Program program = program_of(text);
    const Problem problem = make_problem(program, odd_shape(), 5);
    const Outcome outcome = run(program, problem);
    check_close(outcome, attention_oracle(program, problem), {});
    CHECK(outcome.answer.lse[3] == -std::numeric_limits<double>::infinity());
    for (int d = 0; d < 17; ++d)
        CHECK(outcome.answer.o[3 * 17 + static_cast<std::size_t>(d)] == 0);
    for (int d = 0; d < 24; ++d)
        CHECK(outcome.answer.dq[3 * 24 + static_cast<std::size_t>(d)] == 0);
}

TEST_CASE("captured buffers and their gradients") {
    const char* programs[] = {
        "buffer slopes: f32[H] grad\nscore_mod = score + slopes[h] * (kv_idx - q_idx) * "
        "0.1\nmask_mod "
        "= q_idx >= kv_idx",
        "buffer bias: bf16[Q_LEN] grad\nbuffer offset: i64[Q_LEN]\nscore_mod = score + "
        "bias[offset[q_idx]]",
        "buffer bias: f32[KV_LEN] grad\nscore_mod = score + bias[q_idx % KV_LEN] * bias[kv_idx]",
        "buffer bias: f32[H, Q_LEN, KV_LEN] grad\nscore_mod = score + bias[h, q_idx, kv_idx]",
        "buffer bias: f16[B, Q_LEN, KV_LEN] grad\nscore_mod = score * bias[b, q_idx, kv_idx]",
        "buffer table: f32[32, H] grad\nscore_mod {\n d = max(q_idx - kv_idx, 0)\n far = 16 + "
        "int(log(max(d, 1) / 16) / log(128 / 16) * 16)\n bucket = d if d < 16 else min(far, 31)\n "
        "score + table[bucket, h]\n}",
        "const KW = 9\nbuffer rel_h: bf16[B, H, Q_LEN, 5] grad\nbuffer rel_w: bf16[B, H, Q_LEN, 9] "
        "grad\nscore_mod = score + rel_h[b, h, q_idx, kv_idx // KW] + rel_w[b, h, q_idx, kv_idx % "
        "KW]",
        "buffer rel: f32[N] grad\nscore_mod = score + rel[q_idx - kv_idx + KV_LEN - 1]",
        "buffer w: f32[] grad\nbuffer z: f64[H_KV] grad\nscore_mod = score * w + z[h_kv]",
        "buffer a: f32[H, KV_LEN] grad\nscore_mod = score + tanh(a[h, kv_idx] * a[h, 0])",
        "buffer a: f32[KV_LEN] grad\nscore_mod = score + a[KV_LEN - 1 - kv_idx] + a[2 * kv_idx]",
        "buffer keep: bool[B, KV_LEN]\nbuffer bytes: u8[N]\nbuffer s: i8[H]\nbuffer t: i16[H]\n"
        "score_mod = score + bytes[kv_idx % N] * s[h] - t[h]\nmask_mod = keep[b, kv_idx]",
        "buffer unused: f32[H] grad\nbuffer g: f32[H] grad\nscore_mod = g[h] * 2.0",
    };
    for (const char* text : programs)
        for (MemoryLayout layout : {MemoryLayout::contiguous, MemoryLayout::scattered})
            check(text, odd_shape(), {.layout = layout}, 3, {{"N", 81}});
}

TEST_CASE("reads outside a buffer give 0, send nothing, and are reported when they count") {
    const std::string text =
        "buffer a: f32[N] grad\nbuffer c: f32[Q_LEN, N] grad\n"
        "score_mod = score + a[kv_idx - 3] * 2 + c[q_idx, kv_idx + q_idx] + a[q_idx - 20]";
    for (std::int64_t size : {0, 1, 11, 64})
        check(text, odd_shape(), {}, 2, {{"N", size}});

    auto reported = [](const std::string& program_text) {
        const ir::Program program = program_of(program_text);
        const Problem problem = make_problem(program, odd_shape(), 1, {{"N", 20}});
        return run(program, problem, {.report_out_of_range = true}).out_of_range;
    };
    CHECK(reported("buffer a: f32[N]\nscore_mod = score + a[kv_idx]"));
    CHECK_FALSE(reported("buffer a: f32[N]\nscore_mod = score + a[kv_idx % 20]"));
    CHECK_FALSE(
        reported("buffer a: f32[N]\nscore_mod = score + (a[kv_idx] if kv_idx < 20 else 0.0)"));
    CHECK_FALSE(
        reported("buffer a: f32[N]\nscore_mod = score + a[kv_idx]\nmask_mod = kv_idx < 20"));
    CHECK(reported("buffer a: f32[N]\nscore_mod = score + a[kv_idx]\nmask_mod = kv_idx <= 20"));
}

TEST_CASE("NaN and inf behind a mask leak nowhere") {
    const ir::Program program = program_of("buffer len: i32[B]\nbuffer a: f32[KV_LEN] grad\n"
                                           "score_mod = score + a[kv_idx] + log(40.5 - kv_idx)\n"
                                           "mask_mod = q_idx < len[b] and kv_idx < len[b]");
    for (DType dtype : {DType::f32, DType::bf16}) {
        Problem problem = make_problem(program, odd_shape(), 9);
        problem.buffers[0].integers = {20, 31};
        const Answer clean = attention_oracle(program, problem);
        auto poison = [&](std::vector<double>& values, std::int64_t heads, std::int64_t rows,
                          std::int64_t dim) {
            for (std::int64_t b = 0; b < problem.batch; ++b)
                for (std::int64_t h = 0; h < heads; ++h)
                    for (std::int64_t row =
                             problem.buffers[0].integers[static_cast<std::size_t>(b)];
                         row < rows; ++row)
                        for (std::int64_t d = 0; d < dim; ++d)
                            values[static_cast<std::size_t>(((b * heads + h) * rows + row) * dim +
                                                            d)] =
                                d % 2 == 0 ? kNan : std::numeric_limits<double>::infinity();
        };
        poison(problem.q, 4, 37, 24);
        poison(problem.k, 2, 45, 24);
        poison(problem.v, 2, 45, 17);
        poison(problem.d_out, 4, 37, 17);
        for (std::size_t i = 31; i < 45; ++i)
            problem.buffers[1].reals[i] = kNan;
        RunOptions options{.dtype = dtype};
        check_close(run(program, problem, options), clean, options);
    }
}

TEST_CASE("a NaN that is visible is not hidden") {
    const ir::Program program =
        program_of("score_mod = log(score - 100.0) if q_idx == 1 else score");
    const Outcome outcome = run(program, make_problem(program, odd_shape(), 4));
    CHECK(std::isnan(outcome.answer.o[17]));
    CHECK(std::isnan(outcome.answer.lse[1]));
    CHECK_FALSE(std::isnan(outcome.answer.o[0]));
    CHECK_FALSE(std::isnan(outcome.answer.o[34]));
}

TEST_CASE("offsets, f32 outputs and accumulation") {
    Problem shape = odd_shape();
    shape.q_offset = 30;
    shape.kv_offset = 10;
    for (const char* mask : {"q_idx >= kv_idx", "q_idx - kv_idx < 12 and kv_idx - q_idx < 4"}) {
        const std::string text =
            std::string("score_mod = score + 0.01 * kv_idx - 0.02 * q_idx\nmask_mod = ") + mask;
        check(text, shape);
        check(text, shape, {.dtype = DType::bf16, .output_flags = kOutputF32});
        check(text, shape, {.output_flags = kOutputF32 | kOutputAccumulate, .output_start = 2});
    }
}

TEST_CASE("the gradient of lse") {
    const ir::Program program =
        program_of("buffer s: f32[H] grad\nscore_mod = score * s[h]\nmask_mod = q_idx >= kv_idx");
    Problem problem = make_problem(program, odd_shape(), 8);
    for (std::size_t i = 0; i < 2 * 4 * 37; ++i)
        problem.d_lse.push_back(static_cast<double>(i % 7) / 4 - 0.75);
    check_close(run(program, problem), attention_oracle(program, problem), {});
}

TEST_CASE("one head on many threads splits the keys") {
    Problem shape{.batch = 1,
                  .heads = 1,
                  .kv_heads = 1,
                  .q_len = 70,
                  .kv_len = 700,
                  .head_dim = 16,
                  .head_dim_v = 8};
    for (int threads : {2, 5})
        check("buffer a: f32[KV_LEN] grad\nbuffer s: f32[] grad\nscore_mod = score + a[kv_idx] * s",
              shape, {.threads = threads});
}

TEST_CASE("parameters") {
    const ir::Program program =
        program_of("param cap: f32 = 20.0\nparam w: int = 9\nparam flip: bool = true\n"
                   "score_mod = cap * tanh(score / cap) if flip else 0.0\nmask_mod = abs(q_idx - "
                   "kv_idx) <= w");
    Problem problem = make_problem(program, odd_shape(), 2);
    const passes::Mod mod = mod_of(program, problem, {});
    const auto executable = compile_for(mod, problem, {});
    for (int i = 0; i < 3; ++i) {
        problem.params[0].real = 1.5 + i;
        problem.params[1].integer = 3 + 7 * i;
        problem.params[2].boolean = i != 1;
        check_close(run(mod, *executable, problem, {}), attention_oracle(program, problem), {});
    }
}

TEST_CASE("gradients through branches that are not taken, and bounds that are equal") {
    for (const char* text :
         {"score_mod = sqrt(relu(score))", "score_mod = sqrt(where(score > 0, score, 0.0))",
          "score_mod = sqrt(clamp(score, 0, 9))",
          "buffer a: f32[H] grad\nscore_mod = score * sqrt(relu(a[h]))",
          "buffer a: f32[] grad\nbuffer c: f32[] grad\nscore_mod = clamp(score, a, a + c - c)",
          "score_mod = clamp(score, score * 1.5, score + score * 0.5) + score",
          "buffer a: f32[H] grad\nscore_mod = score + sum(i in 0..20: sqrt(relu(a[h] * i)))"}) {
        CAPTURE(text);
        check(text, odd_shape());
    }
}

TEST_CASE("angles of any size") {
    check("score_mod = score + sin(float(kv_idx) * 1152921504606846976.0) + "
          "cos(float(q_idx) * 1.2676506002282294e30)",
          odd_shape());
}
