// Sinks through the public API, on every device that is there. The suite of Hopper's kernels is
// skipped unless asked for: tests/gpu runs it.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "api/case.h"
#include "api/hopper_check.h"

using namespace flexc;
using flexc::test::Case;
using flexc::test::check_everywhere;

namespace {

const std::string kPrograms[] = {
    "buffer s: f32[H] grad\nsink = s[h]\nmask_mod = q_idx >= kv_idx",
    "buffer s: bf16[H] grad\nsink = s[h] * 2 - 1\nmask_mod = 0 <= q_idx - kv_idx < 9",
    "buffer a: f32[H] grad\nbuffer c: f32[H] grad\nsink = a[h] * 0.1 * q_idx + c[h]",
    "buffer t: f32[B, H, Q_LEN] grad\nscore_mod = 3 * tanh(score / 3)\nsink = t[b, h, q_idx]",
    "buffer a: f32[H] grad\nscore_mod = score + a[h]\nsink = a[h]",
    "buffer r: f32[Q_LEN] grad\nscore_mod = score + r[q_idx]\nsink = r[q_idx] * r[0]\nmask_mod = "
    "q_idx > kv_idx",
    "buffer w: f32[H, Q_LEN, KV_LEN] grad\nscore_mod = score + w[h, q_idx, kv_idx]\nsink = w[h, "
    "q_idx, 0]",
    "buffer e: f32[B, H, Q_LEN, KV_LEN] grad\nscore_mod = score + e[b, h, q_idx, kv_idx]\nsink = "
    "e[b, h, q_idx, 1]",
    "buffer d: f32[N] grad\nscore_mod = score + d[q_idx - kv_idx + KV_LEN]\nsink = d[q_idx % N]",
    "buffer k: f32[KV_LEN] grad\nscore_mod = score + k[kv_idx]\nsink = k[h]\nmask_mod = q_idx > 7",
    "buffer m: f32[H, N] grad\nsink = log(sum(i in 0..N: exp(m[h, i])))",
    "buffer m: f32[4] grad\nsink = m[q_idx - 5] + where(q_idx % 3 == 0, -inf, m[0])",
    "param p: f32 = 0.5\nscore_mod = score * 2\nsink = p * h",
};

Case case_of(const std::string& text) {
    Case one{.text = text};
    one.dims = {{"N", 96}};
    return one;
}

void check_types(Case one, void (*check)(Case)) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
        one.dtype = dtype;
        one.with_d_lse = dtype == DType::f16;
        check(one);
    }
}

} // namespace

TEST_CASE("sinks of many forms, with the gradient of lse and without") {
    for (const std::string& text : kPrograms)
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
            Case one = case_of(text);
            one.dtype = dtype;
            one.head_dim = dtype == DType::f32 ? 24 : 64;
            one.with_d_lse = dtype != DType::bf16;
            check_everywhere(one);
            one.deterministic = dtype == DType::bf16;
            one.strided = true;
            check_everywhere(one);
        }
}

TEST_CASE("a sink beside scores of any size") {
    for (const char* text :
         {"sink = 10000.0", "sink = -10000.0", "score_mod = score * 1e10\nsink = 1e10",
          "score_mod = score - 1e10\nsink = -1e10", "score_mod = score + 20000\nsink = 20000.0"})
        for (const bool with_d_lse : {false, true}) {
            Case one{.text = text, .scale = 0.25f, .large_scores = true, .with_d_lse = with_d_lse};
            check_everywhere(one);
        }
}

TEST_CASE("a sink in pieces of longer sequences, and in every kind of backward") {
    for (const BackwardKernel kind :
         {BackwardKernel::fused, BackwardKernel::split, BackwardKernel::generic}) {
        Case one = case_of(kPrograms[2] + "\nmask_mod = q_idx >= kv_idx");
        one.q_offset = 30;
        one.kv_offset = 7;
        one.backward_kernel = kind;
        check_everywhere(one);
        one.f32_outputs = true;
        one.dtype = DType::bf16;
        check_everywhere(one);
    }
}

#if FLEXC_WITH_CPU
TEST_CASE("a sink of the options is one of the text, and is part of a kernel's key") {
    const auto lse_and_o = [](const CompileOptions& given, const std::string& text) {
        CompileOptions options = given;
        options.dtype = DType::f32;
        options.head_dim = 8;
        options.device = Device::cpu();
        options.backward = false;
        auto kernel = compile(text, options);
        REQUIRE(kernel);
        std::vector<float> ones(8, 1.0f), o(8), lse(1);
        const auto rows = [](std::vector<float>& data) {
            return TensorView::contiguous(data.data(), DType::f32, {1, 1, 1, 8});
        };
        auto plan = kernel->plan({.q_len = 1, .kv_len = 1}, {}, {}, {.scale = 0.125});
        REQUIRE(plan);
        std::vector<std::byte> workspace(plan->workspace_bytes());
        REQUIRE(kernel->forward(*plan,
                                {rows(ones), rows(ones), rows(ones), rows(o),
                                 TensorView::contiguous(lse.data(), DType::f32, {1, 1, 1})},
                                {}, {workspace.data(), workspace.size()}));
        CHECK(lse[0] == doctest::Approx(1.0)); // without the sink
        return o[0];
    };
    // A score of 1, beside sinks of 1 and of 2.
    CHECK(lse_and_o({}, "score") == doctest::Approx(1.0));
    CHECK(lse_and_o({.sink = "1"}, "score") == doctest::Approx(0.5));
    CHECK(lse_and_o({.sink = "2"}, "score") == doctest::Approx(1 / (1 + 2.718281828)));
    CHECK(lse_and_o({}, "sink = 1") == doctest::Approx(0.5));
    CHECK(lse_and_o({}, "sink = 2") == doctest::Approx(1 / (1 + 2.718281828)));
    CHECK_FALSE(compile("score", {.sink = "kv_idx"}));
    const auto signature = check("score", {.sink = "h * 2"});
    REQUIRE(signature);
    CHECK(signature->sink_depends_on == "h");
    // How many keys are seen has nothing to do with it.
    CHECK(compile("sink = 1", {.device = Device::cpu(), .count_visible = true}));
}
#endif

TEST_SUITE_BEGIN("hopper");

TEST_CASE("sinks in Hopper's kernels" * doctest::skip()) {
    for (const std::string& text : kPrograms)
        for (const int head_dim : {64, 128, 256}) {
            Case one = case_of(text);
            one.q_len = 300;
            one.kv_len = 277;
            one.dims = {{"N", 700}};
            one.head_dim = head_dim;
            check_types(one, test::check_on_hopper);
            one.deterministic = head_dim == 64;
            if (one.deterministic) check_types(one, test::check_on_hopper);
        }
}

TEST_CASE("sinks of any size in Hopper's kernels" * doctest::skip()) {
    for (const char* text :
         {"sink = 10000.0", "sink = -10000.0", "score_mod = score * 1e10\nsink = 1e10",
          "score_mod = score - 1e10\nsink = -1e10", "score_mod = 30 * tanh(score)\nsink = 29.5"}) {
        Case one{.text = text, .scale = 0.25f, .large_scores = true, .with_d_lse = true};
        one.head_dim = 64;
        // dS has no room in f16 where a derivative is larger than its largest number.
        if (std::string(text).starts_with("score_mod = score *")) {
            one.dtype = DType::bf16;
            test::check_on_hopper(one);
        } else {
            check_types(one, test::check_on_hopper);
        }
    }
}

TEST_SUITE_END();
