// What the generated text looks like, beside what it computes.
#include <cmath>
#include <cstdlib>

#include <doctest/doctest.h>

#include "compile/kernels.h"
#include "cuda/emitted.h"
#include "cuda/expressions.h"
#include "front/library.h"
#include "plan/arch/sm90/sm90.h"
#include "program_of.h"
#include "support/text.h"

namespace {

using namespace flexc;

std::string text_of(const std::string& text, plan::KernelKind kind, DType dtype = DType::bf16) {
    auto mod = test::lower_text(text, 64, 64, true);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
    plan::KernelConfig config;
    config.kind = kind;
    return test::emitted(*mod, config, {.dtype = dtype, .source_text = text});
}
// That of Hopper's fused backward; `config` has what else is not the default.
std::string hopper_text_of(const std::string& text, plan::KernelConfig config = {},
                           DType dtype = DType::bf16) {
    auto mod = test::lower_text(text, 64, 64, true);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
    config.kind = plan::KernelKind::backward_fused;
    config.family = plan::sm90::kName;
    return test::emitted(*mod, config, {.dtype = dtype});
}
// What a program's text has beside a policy's default.
std::string policy(const std::string& text, const std::string& name) {
    const std::size_t first = text.find("struct " + name + " :");
    REQUIRE(first != std::string::npos);
    return text.substr(first, text.find("\n};", first) - first);
}

bool has(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("a read that uses the head alone is kept by the head, and its gradient summed") {
    const std::string text = text_of("buffer slopes: f32[H] grad\n"
                                     "score_mod = score + slopes[h] * (kv_idx - q_idx)\n",
                                     plan::KernelKind::backward_fused);
    CHECK(has(text, "struct Head {\n    float slopes_"));
    CHECK(has(text, "at.head.slopes_"));
    CHECK(has(text, "kHeadGradients = 1, kElementGradients = 0"));
    CHECK(!has(text, "flexc_inside")); // h is below H
}

TEST_CASE("differences of 32-bit numbers are clamped, and sums compared, in 32 bits") {
    const auto text_for = [](const std::string& index, int extent, bool is_of_hopper = false) {
        const std::string text =
            formatted("buffer p: i32[Q_LEN]\nbuffer k: i32[KV_LEN]\nbuffer t: f32[{}]\n"
                      "score_mod = score + t[{}]",
                      extent, index);
        auto mod = test::lower_text(text, 64, 64, true);
        REQUIRE(mod.has_value());
        plan::KernelConfig config;
        config.kind = plan::KernelKind::backward_fused;
        if (is_of_hopper) config.family = plan::sm90::kName;
        return test::emitted(*mod, config, {});
    };
    // The bounds are around the query's number.
    const std::string clamped = "clamp(k[kv_idx] - p[q_idx], -8, 7) + 8";
    CHECK(has(text_for(clamped, 16), " = flexc_clamped_difference(at.column.k_"));
    CHECK(has(text_for(clamped, 16, true), " = flexc_clamped_difference(at.column.k_"));
    CHECK(has(text_for("max(min(p[q_idx] - k[kv_idx], 7), -8) + 8", 16),
              "-flexc_clamped_difference(at.column.k_"));
    CHECK(!has(text_for("clamp(k[kv_idx] - p[q_idx], 1, 7)", 16), "flexc_clamped_difference"));
    CHECK(!has(text_for("clamp(kv_idx - q_idx, -8, 7) + 8", 16), "flexc_clamped_difference"));
    // What elements of a thread share is a query, or a key.
    CHECK(has(text_for("p[q_idx] * 8 + k[kv_idx]", 64), "flexc_sum_inside(at.row.v"));
    CHECK(!has(text_for("p[q_idx] * 8 + k[kv_idx]", 64, true), "flexc_sum_inside"));
    CHECK(!has(text_for("p[q_idx] + k[kv_idx] * 8", 64), "flexc_sum_inside"));
}

TEST_CASE("conjuncts that terms of a mask share are taken once") {
    // Each line doubles the paths to those above it, not the conjuncts.
    std::string program = "mask_mod {\n  c = (q_idx ^ kv_idx) > 2\n";
    for (int i = 0; i < 60; ++i)
        program += "  c = (c and q_idx != " + std::to_string(3 + i) +
                   ") and (c and kv_idx != " + std::to_string(5 + i) + ")\n";
    const std::string text = hopper_text_of(program + "  c\n}");
    const auto parts = text.find("struct MaskPart;");
    REQUIRE(parts != std::string::npos);
    const auto first = text.find(" ^ ", parts);
    REQUIRE(first != std::string::npos);
    CHECK(text.find(" ^ ", first + 1) == std::string::npos);
}

TEST_CASE("one backward kernel adds gradients, the other does not") {
    const std::string program = "buffer bias: f32[Q_LEN] grad\nscore_mod = score + bias[q_idx]\n";
    CHECK(has(text_of(program, plan::KernelKind::backward_dkdv), "flexc_accumulate"));
    CHECK(!has(text_of(program, plan::KernelKind::backward_dq), "flexc_accumulate"));
}

TEST_CASE("what rows and columns of a grid of keys name is staged") {
    const auto text_for = [](int width, bool columns = true) {
        const std::string w = std::to_string(width);
        plan::KernelConfig config;
        config.block.key_tile = 128;
        config.sums.key_width = width;
        config.storage.stages_columns = columns;
        return hopper_text_of("buffer s: f32[Q_LEN, N] grad\nscore_mod = score + "
                              "s[q_idx, kv_idx % " +
                                  w + "] + s[q_idx, kv_idx // " + w + "]",
                              config);
    };
    const std::string rows = text_for(14, false);
    CHECK(has(rows, "kRowReads = 1"));
    CHECK(!has(rows, "kColumnReads"));
    CHECK(has(rows, "at.staged[0]"));
    CHECK(!has(rows, "at.staged[1]"));
    CHECK(has(rows, "kReadsElements = true"));
    for (const std::string& text : {text_for(64), text_for(14)}) {
        for (const char* constant : {"kRowReads = 1", "kColumnReads = 1", "kColumnBytes = 4"})
            CHECK(has(text, constant));
        CHECK(has(text, "at.staged[1]"));
        CHECK(!has(text, "kReadsElements"));
        CHECK(has(text, "Sum::quotient : "));
        CHECK(has(text, "Sum::remainder : "));
        CHECK(has(text, "kSumsQuotients = true"));
    }
    CHECK(!has(text_for(0), "KeyIndex2d"));
}

TEST_CASE("reads of scores and of the mask are told apart") {
    const auto text_for = [](const std::string& program) {
        plan::KernelConfig config;
        config.block.key_tile = 128;
        return hopper_text_of("buffer s: f32[Q_LEN, KV_LEN]\n" + program, config);
    };
    const std::string of_mask = text_for("mask_mod = s[q_idx, kv_idx] > 0");
    CHECK(has(policy(of_mask, "Mask"), "kReadsElements = true"));
    CHECK(!has(policy(of_mask, "ScoreDerivative"), "kReadsElements"));
    const std::string of_scores = text_for("score_mod = score + s[q_idx, kv_idx]");
    CHECK(has(policy(of_scores, "ScoreDerivative"), "kReadsElements = true"));
    CHECK(!has(of_scores, "struct Mask :"));
}

TEST_CASE("kernels that pass over rows do not depend on the program") {
    const auto bare = [](std::string text) { return text.substr(text.find("#pragma once")); };
    const std::string other = "buffer bias: f32[Q_LEN]\nscore_mod = score + bias[q_idx]\n";
    for (const auto kind : {plan::KernelKind::delta, plan::KernelKind::convert})
        CHECK(bare(text_of("score * 2", kind)) == bare(text_of(other, kind)));
}

TEST_CASE("what a step depends on is divided exactly") {
    CHECK(has(text_of("score / (q_idx + 1.0)", plan::KernelKind::forward), "flexc_fast_divide"));
    CHECK(!has(text_of("score / 3", plan::KernelKind::forward, DType::f32), "flexc_fast"));
    CHECK(!has(text_of("score + int(kv_idx / 3)", plan::KernelKind::forward), "flexc_fast"));
}

TEST_CASE("what all elements of a head divide by becomes a factor where roundings do no harm") {
    const std::string text =
        "buffer c: f32[H]\nparam p: f32\nscore_mod = (score / c[h] + score / p) / 3";
    const std::string fast = text_of(text, plan::KernelKind::forward);
    CHECK(has(fast, "score * at.head.reciprocal_"));
    CHECK(has(fast, "score * at.launch.reciprocal_"));
    CHECK(has(fast, "* 0.333333"));
    CHECK(!has(fast, "divide(score"));
    const std::string exact = text_of(text, plan::KernelKind::forward, DType::f32);
    CHECK(!has(exact, "reciprocal_"));
    CHECK(has(exact, "flexc_divide(score"));
}

TEST_CASE("positions are divided by what is the same for a launch through its reciprocal") {
    const auto forward = [](const std::string& score) {
        return text_of("param w: i32 = 64\nscore_mod = " + score, plan::KernelKind::forward);
    };
    const std::string text = forward("score + (kv_idx // w - q_idx % w) % (w * 2)");
    CHECK(has(text, "alignas(8) Reciprocal v"));
    CHECK(has(text, "flexc_floor_divide(kv, arguments.v"));
    CHECK(has(text, "flexc_floor_modulo(q, arguments.v"));
    // A remainder may be as large as the param, whose range is that of integers in a double.
    CHECK(has(text, "flexc_floor_modulo(at.column."));
    // The host computes no reals as kernels do, and reads no buffers.
    for (const char* score :
         {"score + kv_idx // 3", "score + w // kv_idx", "score + w // 3", "score + int(score) // w",
          "score + kv_idx // int(w * 0.3)", "score + kv_idx // (w if w * 0.3 > 2.0 else 5)"})
        CHECK_MESSAGE(!has(forward(score), "_reciprocal"), score);
    // More than there are words for are divided as ever.
    std::string many = "score_mod = score", params;
    for (std::size_t i = 0; i < passes::kMaxLaunchDivisors + 3; ++i) {
        params += "param p" + std::to_string(i) + ": i32 = 5\n";
        many += " + kv_idx // p" + std::to_string(i);
    }
    const std::string of_many = text_of(params + many, plan::KernelKind::forward);
    std::size_t reciprocals = 0;
    for (std::size_t at = 0; (at = of_many.find(") Reciprocal ", at)) != std::string::npos; ++at)
        ++reciprocals;
    CHECK(reciprocals == passes::kMaxLaunchDivisors);
    CHECK(has(of_many, "flexc_floor_divide(flexc_wide("));
}

TEST_CASE("tanh and what is made of it are rough where the error stays small") {
    const auto forward = [](const std::string& score, DType dtype = DType::bf16) {
        return hopper_text_of("score_mod = " + score, {}, dtype);
    };
    CHECK(has(forward("score + tanh(score)"), "tanh_fast(score)"));
    CHECK(has(forward("score * sigmoid(score)"), "flexc_rough_sigmoid(score)"));
    CHECK(has(forward("gelu(score)"), "flexc_rough_erf("));
    CHECK(has(forward("softplus(score)"), "flexc_fast_softplus(score)"));
    // Small values count: of logarithms, of what is far from one, and in f16.
    CHECK(has(forward("score + log(1 + tanh(score))"), "flexc_tanh(score)"));
    CHECK(has(forward("log(sigmoid(score))"), "flexc_fast_sigmoid(score)"));
    CHECK(has(forward("1000 * sigmoid(score)"), "flexc_fast_sigmoid(score)"));
    CHECK(has(forward("score + tanh(score)", DType::f16), "flexc_tanh(score)"));
    CHECK(has(forward("where(tanh(score) < 0.5, score, 0.0)"), "flexc_tanh(score)"));
    // What is computed once costs nothing.
    CHECK(has(forward("score + tanh(q_idx * 0.1)"), "flexc_tanh("));
}

TEST_CASE("roots of small numbers are 0 where that cannot be seen in the score") {
    const auto forward = [](const std::string& score, DType dtype = DType::bf16) {
        return text_of("buffer x: f32[KV_LEN]\nbuffer c: f32[H]\nscore_mod = " + score,
                       plan::KernelKind::forward, dtype);
    };
    const std::string root = "sqrt((x[q_idx] - x[kv_idx]) ** 2)";
    for (const std::string& text :
         {"score - c[h] * " + root, "score * exp(-" + root + " / c[h])",
          "score / exp2(" + root + ")", "score - tanh(min(" + root + ", c[h]))",
          "log(exp(" + root + ") + 1) + score"}) {
        CAPTURE(text);
        CHECK(has(forward(text), "sqrt_flushed("));
        CHECK(has(forward(text, DType::f16), "sqrt_flushed("));
        CHECK(has(forward(text, DType::f32), "sqrtf("));
    }
    // Divisors, logarithms, large factors, and what is not computed for each element.
    for (const std::string& text :
         {"score / " + root, "score + log(" + root + ")", "score + 1e20 * " + root,
          std::string("score + sqrt(x[q_idx]) * kv_idx")}) {
        CAPTURE(text);
        CHECK(has(forward(text), "sqrt_fast("));
        CHECK(!has(forward(text), "sqrt_flushed("));
    }
    CHECK(has(forward("score + floor(" + root + ")"), "sqrtf("));
}

TEST_CASE("names that CUDA or the text itself uses do no harm") {
    for (const char* buffer : {"float", "__global__", "at", "mod", "sizeof", "score_data"}) {
        const std::string text =
            text_of(std::string("buffer ") + buffer + ": f32[H]\nscore + " + buffer + "[h]",
                    plan::KernelKind::forward);
        CHECK(has(text, std::string(buffer) + "_data"));
    }
    // A backslash at the end of a comment line would swallow the next line.
    CHECK(!has(text_of("score * 2 # \\\n", plan::KernelKind::forward), "\\"));
}

TEST_CASE("what is long for an element is a function that is not inlined") {
    const auto repeated = [](int length, plan::KernelKind kind) {
        std::string program = "buffer at: f32[H, Q_LEN] grad\nparam cap: f32\nscore_mod {\n"
                              "  x = score + at[h, q_idx % (kv_idx + 1)]\n";
        for (int i = 0; i < length; ++i)
            program += "  x = log(x) * cap + float(kv_idx - q_idx)\n";
        return text_of(program + "  x\n}\n", kind);
    };
    for (const auto kind : {plan::KernelKind::forward, plan::KernelKind::backward_fused}) {
        CHECK(!has(repeated(1, kind), "__noinline__"));
        const std::string text = repeated(12, kind);
        const std::size_t begin = text.find("__noinline__ ");
        REQUIRE(begin != std::string::npos);
        const std::string function = text.substr(begin, text.find("\n}\n", begin) - begin);
        CHECK(has(function, "flexc_log("));
        // Values alone: an address would keep what is behind it in memory.
        CHECK(!has(function, "at."));
        CHECK(!has(function, "At& "));
    }
}

TEST_CASE("long addresses of gradients that elements add are in a function that is not inlined") {
    const auto gradients = [](const std::string& index) {
        return hopper_text_of("buffer t: f32[H, N] grad\nbuffer doc: i64[KV_LEN]\n"
                              "score_mod = score + t[h, " +
                              index + "]\n");
    };
    constexpr std::string_view kCalled = "long_gradient_address(";
    CHECK(!has(gradients("(q_idx * kv_idx) % N"), kCalled));
    const std::string text =
        gradients("(q_idx ** (kv_idx % 3) * doc[(q_idx * kv_idx) % KV_LEN]) % N");
    const std::size_t begin = text.find(kCalled);
    REQUIRE(begin != std::string::npos);
    const std::string function = text.substr(begin, text.find("\n}\n", begin) - begin);
    CHECK(has(function, "flexc_integer_power("));
    CHECK(!has(function, "at."));
    CHECK(has(policy(text, "ReadGradients"), "return gradient_address(at, i);"));
}

TEST_CASE("gradients of short sequences meet on chip where elements share addresses") {
    const passes::Mod mod = test::lowered(
        "buffer t: f32[H, 13] grad\nbuffer p: f32[H, Q_LEN, KV_LEN] grad\n"
        "score_mod = score + t[h, min(abs(q_idx - kv_idx), 12)] + p[h, q_idx, kv_idx]\n");
    plan::KernelConfig config;
    config.kind = plan::KernelKind::backward_fused;
    config.sequences.is_short = true;
    config.sums = {.sums_batches = true};
    const std::string text = test::emitted(mod, config);
    const std::size_t begin = text.find("void add_shared_gradient(");
    REQUIRE(begin != std::string::npos);
    const std::string function = text.substr(begin, text.find("\n}\n", begin) - begin);
    CHECK(has(text, "kHasSharedGradient = true, kSharesAddresses = true;"));
    CHECK(has(function, "shared.add("));
    CHECK(has(function, "flexc_accumulate("));
    CHECK(function.find("shared.add(") < function.find("flexc_accumulate("));
}

TEST_CASE("what is long for a key is a function that is not inlined, where scores are modified") {
    const auto program = [](int length, const char* rest) {
        std::string text = "buffer at: f32[H, Q_LEN, N]\n"
                           "buffer doc: i64[N]\nfn of_key(kv) {\n  x = kv + 4 % KV_LEN\n";
        for (int i = 0; i < length; ++i)
            text += "  x = x * doc[x % N] % KV_LEN\n";
        return text + "  x\n}\n" + rest;
    };
    const char* score = "score_mod = score + at[h, q_idx, of_key(kv_row) % N]\n";
    const char* mask = "mask_mod = q_idx >= of_key(kv_idx)\n";
    for (const auto kind : {plan::KernelKind::forward, plan::KernelKind::backward_fused}) {
        CHECK(!has(text_of(program(0, score), kind), "long_at_column"));
        CHECK(!has(text_of(program(12, mask), kind), "long_at_column"));
        const std::string text = text_of(program(12, score), kind);
        const std::size_t begin = text.find("Column long_at_column(");
        REQUIRE(begin != std::string::npos);
        const std::string function = text.substr(begin, text.find("\n}\n", begin) - begin);
        CHECK(has(function, "flexc_floor_modulo("));
        CHECK(has(text, "__noinline__ FLEXC_PURE Column long_at_column("));
        // Values alone: an address would keep what is behind it in memory.
        CHECK(!has(function, "at."));
        CHECK(!has(function, "Arguments"));
        // The caller has no `at`.
        const std::size_t caller = text.find("Column at_column(", begin);
        REQUIRE(caller != std::string::npos);
        const std::string call = text.substr(caller, text.find("\n}\n", caller) - caller);
        CHECK(has(call, "return long_at_column("));
        CHECK(has(call, "arguments.doc_data"));
        CHECK(!has(call, "at."));
    }
}

TEST_CASE(
    "what is long for a query is called where terms are summed, as no rows are staged there") {
    const auto hopper = [](const std::string& of_query, const std::string& gradient) {
        return hopper_text_of("buffer w: f32[H, 20]" + gradient +
                              "\nbuffer a: f32[Q_LEN]\nfn of_query(x) = " + of_query +
                              "\nscore_mod = score + of_query(a[q_idx]) * "
                              "sum(i in 0..20: w[h, i] * tanh(score * i))");
    };
    const std::string of_long = "sin(cos(sin(cos(sin(x)))))";
    CHECK(has(hopper(of_long, " grad"), "Row long_at_row("));
    CHECK(!has(hopper(of_long, ""), "long_at_row"));
    CHECK(!has(hopper("sin(cos(x))", " grad"), "long_at_row"));
}

TEST_CASE("what enters sums whose terms have gradients is called where it is long") {
    plan::KernelConfig config;
    config.sum_elements = 16;
    const auto hopper = [&](const std::string& of_score) {
        return hopper_text_of(
            "buffer w: f32[H, 20] grad\nscore_mod = score + sum(i in 0..20: w[h, i] "
            "* tanh(i * " +
                of_score + "))",
            config);
    };
    const auto enter = [](const std::string& text) {
        const std::size_t begin = text.find("void enter(const At& at");
        REQUIRE(begin != std::string::npos);
        return text.substr(begin, text.find("\n    }\n", begin) - begin);
    };
    const std::string of_short = hopper("sin(score)");
    CHECK(!has(of_short, "Entering"));
    CHECK(has(enter(of_short), "flexc_sin("));
    const std::string of_long = hopper("sin(cos(sin(cos(sin(score)))))");
    CHECK(has(of_long, "__noinline__ Entering long_entering("));
    CHECK(has(enter(of_long), "= entering(at, score);"));
    CHECK(!has(enter(of_long), "flexc_sin("));
}

TEST_CASE(
    "of long values of keys that scores and masks read, those that nobody uses are not read") {
    const auto of_key = [](const std::string& program, plan::KernelKind kind) {
        const std::string text = text_of("buffer doc: i64[KV_LEN]\nbuffer t: f32[N]\n"
                                         "buffer last: i32[KV_LEN]\n" +
                                             program,
                                         kind);
        const std::size_t begin = text.find("Column at_column(");
        REQUIRE(begin != std::string::npos);
        return text.substr(begin, text.find("\n}\n", begin) - begin);
    };
    const std::string mask = "mask_mod = q_idx <= last[kv_idx]\n";
    for (const auto kind : {plan::KernelKind::forward, plan::KernelKind::backward_fused}) {
        const std::string both = of_key("score_mod = score + t[doc[kv_idx] % N]\n" + mask, kind);
        CHECK(has(both, "flexc_read_if_used("));
        CHECK(!has(both, "flexc_read("));
        for (const std::string& other : std::vector<std::string>{
                 "mask_mod = q_idx <= doc[kv_idx] % N + last[kv_idx]\n", // which uses all of them
                 "score_mod = score + t[kv_idx * kv_idx % N]\n",         // a single one
                 "score_mod = score + doc[kv_idx]\n" + mask}) {          // short ones
            CHECK(has(of_key(other, kind), "flexc_read("));
            CHECK(!has(of_key(other, kind), "flexc_read_if_used("));
        }
    }
}

TEST_CASE("no mod of the library has the functions of long code") {
    for (const front::LibraryMod& entry : front::library()) {
        CAPTURE(entry.name);
        for (const auto kind : {plan::KernelKind::forward, plan::KernelKind::backward_fused}) {
            const std::string text = text_of(std::string(entry.text), kind);
            for (const std::string_view part : {"flexc_read_if_used(", "__noinline__", "Entering"})
                CHECK(!has(text, part));
        }
    }
}

TEST_CASE("literals are exact") {
    using cuda::CType;
    CHECK(cuda::real_literal(1) == "1.0f");
    CHECK(cuda::real_literal(-0.5) == "(-0.5f)");
    CHECK(std::strtof(cuda::real_literal(0.1).c_str(), nullptr) == 0.1f);
    CHECK(std::strtof(cuda::real_literal(1e-45).c_str(), nullptr) == 1e-45f);
    CHECK(cuda::real_literal(1e300) == "flexc_infinity()");
    CHECK(cuda::real_literal(-INFINITY) == "(-flexc_infinity())");
    CHECK(cuda::real_literal(NAN) == "flexc_nan()");
    CHECK(cuda::integer_literal(-7, CType::narrow) == "(-7)");
    CHECK(cuda::integer_literal(7, CType::wide) == "7ll");
    CHECK(cuda::integer_literal(INT64_MIN, CType::wide) == "(-9223372036854775807ll - 1)");
    CHECK(cuda::unbracketed("((a) + (b))") == "(a) + (b)");
    CHECK(cuda::unbracketed("(a) + (b)") == "(a) + (b)");
}

TEST_CASE("each product of Hopper's forward is one statement") {
    auto mod = test::lower_text("score_mod = score\n", 96, 48, true);
    REQUIRE(mod.has_value());
    plan::KernelConfig config;
    config.kind = plan::KernelKind::forward;
    config.block.query_tile = 192;
    config.block.key_tile = 80;
    config.family = plan::sm90::kName;
    config.schedule.emplace();
    config.decomposition.of = plan::Decomposition::Of::plain;
    config.of_family = plan::sm90::Forward{};
    const cuda::EmitOptions options{.dtype = DType::f16, .head_dim = 96, .head_dim_v = 40};
    std::string text = test::emitted(*mod, config, options);
    const auto count = [&](std::string_view part) {
        int found = 0;
        for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at)
            ++found;
        return found;
    };
    CHECK(count("asm volatile(") == 2);
    CHECK(count("wgmma.mma_async.sync.aligned.m64n80k16.f32.f16.f16 {%0, ") == 6);
    CHECK(count("wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 {%0, ") == 5);
    CHECK(has(text, "add.u32 x, %40, 1538;"));      // the second sixteen of the second panel
    CHECK(has(text, "{%24, %25, %26, %27}, b, 1")); // weights after 24 accumulators
    CHECK(has(text, "add.u32 y, %44, 512;"));       // the last 16 rows of values

    config.of_family = plan::sm90::Forward{.sizes = {.multiplies_index_2d_rows = true}};
    text = test::emitted(*mod, config, options);
    CHECK(count("asm volatile(") == 2);
    CHECK(count("wgmma.mma_async.sync.aligned.m64n80k16.f32.f16.f16 {%0, ") == 6);
    // What is added is of three bf16 parts, whatever the products are of.
    CHECK(count("wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {%0, ") == 1);
    CHECK(has(text, "mov.b64 a, {%43, 8};")); // rows of the grid, after what there is otherwise
}

TEST_CASE("Hopper's forward names the features that it has, and no others") {
    const auto features = [](const std::string& program, const ::sm90::ForwardSizes& sizes,
                             plan::Decomposition::Of decomposed = plan::Decomposition::Of::plain) {
        auto mod = test::lower_text(program, 64, 64, true);
        REQUIRE(mod.has_value());
        plan::KernelConfig config;
        config.kind = plan::KernelKind::forward;
        config.block = {.query_tile = 128, .key_tile = 128};
        config.family = plan::sm90::kName;
        config.schedule.emplace();
        config.decomposition.of = decomposed;
        config.of_family = plan::sm90::Forward{.sizes = sizes};
        const std::string text = test::emitted(*mod, config);
        std::string found;
        constexpr std::string_view kDefine = "#define FLEXC_";
        for (std::size_t at = 0; (at = text.find(kDefine, at)) != std::string::npos;) {
            at += kDefine.size();
            found += text.substr(at, text.find('\n', at) - at) + " ";
        }
        return found;
    };
    const std::string causal = "mask_mod = q_idx >= kv_idx\n";
    CHECK(features(causal, {}).empty());
    CHECK(features(causal, {.copies_keys = true}) == "COPIES_KEYS ");
    CHECK(features("score_mod = score * 2.0 if q_idx % 3 == 0 else tanh(score)\n", {}).empty());
    CHECK(features("score_mod = 5.0 * tanh(score / 5.0)\n", {}) == "IS_AFFINE ");
    CHECK(features(causal, {.shifted_bytes = 2}) == "HAS_SHIFTED_READS ");
    CHECK(features(causal, {.multiplies_slope = true}) == "HAS_OPERANDS ");
    CHECK(features(causal, {.index_2d_rows = 1}).empty()); // the program adds nothing by rows
    CHECK(features(causal, {.kind_columns = 16}) == "HAS_KEY_KINDS ");
    CHECK(features(causal, {.table_words = 64}) == "HAS_TABLES ");
    // Kinds of pairs have copies where other programs have tables.
    CHECK(features(causal, {.pair_kinds = 8}) == "HAS_KEY_KINDS HAS_TABLES TABULATES ");
    const std::string bias = "buffer bias: bf16[B, H, Q_LEN, KV_LEN]\n"
                             "score_mod = score + bias[b, h, q_idx, kv_idx]\n";
    CHECK(features(bias, {.bias_bytes = 2}) == "HAS_DENSE_BIAS IS_AFFINE ");
}
