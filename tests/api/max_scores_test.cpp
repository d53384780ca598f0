// The largest score of each row beside o and lse, by every kernel that keeps its maximum in another
// way.
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "api/case.h"
#include "api/hopper_check.h"
#include "cpu_options.h"

using namespace flexc;
using flexc::test::Case;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Program {
    const char* text;
    float scale = 0; // 0: the usual one
};

// Maxima that rise along the keys by less than what kernels rescale for, and by more; scores that
// are -inf, a mask that hides whole rows, and one with a block mask.
constexpr Program kPrograms[] = {
    {"score_mod = score"},
    {"score_mod = score", 1},
    {"score_mod = score", -0.5F},
    {"mask_mod = q_idx >= kv_idx"},
    {"mask_mod = q_idx >= kv_idx + 20"},
    {"mask_mod = q_idx % 5 != 0 and q_idx % 4 != kv_idx % 3"},
    {"score_mod = score - kv_idx * 0.02"},
    {"score_mod = score + kv_idx * 0.02"},
    {"score_mod = score - kv_idx // 64 * 1.3"},
    {"score_mod = -inf if kv_idx % 7 == q_idx % 7 else score * 2"},
    {"buffer s: f32[H]\nscore_mod = score + s[h] * (kv_idx - q_idx)\nmask_mod = q_idx >= kv_idx"},
    {"buffer s: f32[H]\nscore_mod = 2 * tanh(score / 2)\nsink = s[h] + 4"},
};

Case case_of(const Program& program, DType dtype, int head_dim) {
    Case one = {.text = program.text, .dtype = dtype, .scale = program.scale};
    one.head_dim = head_dim;
    one.q_len = 70;
    one.kv_len = 300;
    one.backward = false;
    one.max_scores = true;
    return one;
}

} // namespace

TEST_CASE("largest scores of rows by each kernel") {
    for (const Program& program : kPrograms)
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
            Case one = case_of(program, dtype, 32);
            test::check_everywhere(one);
            one.forward_kernel = ForwardKernel::generic;
            one.q_offset = 3;
            one.strided = true;
            test::check_everywhere(one);
        }
}

// Few queries divide their keys, and a row's parts may see nothing.
TEST_CASE("largest scores of few queries on many keys") {
    for (const char* text : {"score_mod = score", "mask_mod = q_idx + 900 >= kv_idx > 500",
                             "score_mod = score + kv_idx * 0.01", "mask_mod = kv_idx < 0"})
        for (const std::int64_t q_len : {1, 3}) {
            Case one = case_of({text}, DType::bf16, 64);
            one.heads = 8;
            one.q_len = q_len;
            one.kv_len = 4000;
            test::check_everywhere(one);
        }
}

TEST_CASE("largest scores of many short sequences") {
    Case one = case_of({"buffer t: f32[H, 40, 40]\nscore_mod = score + t[h, q_idx, kv_idx]"},
                       DType::f16, 32);
    one.batch = 300;
    one.q_len = one.kv_len = 40;
    test::check_everywhere(one);
}

TEST_CASE("largest scores are those that kernels were compiled for on the CPU") {
    if (!test::has_cpu()) return;
    constexpr std::array<std::int64_t, 4> kShape = {1, 1, 8, 16};
    std::vector<float> q(8 * 16, 1), o(8 * 16), lse(8), most(8, 7);
    const auto view = [&](std::vector<float>& numbers) {
        return TensorView::contiguous(numbers.data(), DType::f32, kShape);
    };
    const auto call = [&](bool has_max_scores, std::vector<std::int64_t> shape, DType dtype) {
        const auto kernel = compile("score", {.mask_mod = "q_idx > kv_idx",
                                              .dtype = DType::f32,
                                              .head_dim = 16,
                                              .device = Device::cpu(),
                                              .backward = false,
                                              .max_scores = has_max_scores});
        REQUIRE(kernel.has_value());
        const auto plan = kernel->plan({.q_len = 8, .kv_len = 8});
        REQUIRE(plan.has_value());
        auto memory = DeviceMemory::allocate(Device::cpu(), plan->workspace_bytes() + 1);
        REQUIRE(memory.has_value());
        const auto done =
            kernel->forward(*plan,
                            {.q = view(q),
                             .k = view(q),
                             .v = view(q),
                             .o = view(o),
                             .max_scores = TensorView::contiguous(most.data(), dtype, shape)},
                            {}, {memory->data(), plan->workspace_bytes()});
        return done ? std::string() : done.error().message;
    };
    CHECK(call(false, {1, 1, 8}, DType::f32) ==
          "max_scores: the kernel was compiled without them: set CompileOptions::max_scores");
    CHECK(most == std::vector<float>(8, 7));
    CHECK(call(true, {1, 1, 8}, DType::f16) == "max_scores: expected type f32, got f16");
    CHECK(call(true, {1, 8}, DType::f32) == "max_scores: expected shape [1, 1, 8], got [1, 8]");
    CHECK(call(true, {1, 1, 8}, DType::f32).empty());
    CHECK(most == std::vector<float>{-kInfinity, 4, 4, 4, 4, 4, 4, 4});
}

TEST_SUITE_BEGIN("hopper");

// By each form of score that its forward knows, with the softmax that suits it: the running maximum
// raised late, with headroom, none where scores are bounded, and exponents that are relative to it.
TEST_CASE("largest scores of rows by Hopper's forward" * doctest::skip()) {
    constexpr Program kForms[] = {
        {"buffer c: f32[KV_LEN]\nscore_mod = score + c[kv_idx]"},
        {"buffer t: f32[H, Q_LEN, KV_LEN]\nscore_mod = score + t[h, q_idx, kv_idx]"},
        {"buffer t: bf16[H, Q_LEN, KV_LEN]\nscore_mod = score + t[h, q_idx, kv_idx]"},
        {"buffer s: bf16[B, H, Q_LEN, 9]\nbuffer t: bf16[H, Q_LEN, 64]\n"
         "score_mod = score + s[b, h, q_idx, kv_idx // 64] + t[h, q_idx, kv_idx % 64]"},
        {"buffer s: bf16[B, H, Q_LEN, 22]\nbuffer t: bf16[H, Q_LEN, 14]\n"
         "score_mod = score + s[b, h, q_idx, kv_idx // 14] + t[h, q_idx, kv_idx % 14]"},
        {"buffer t: f32[H, 64]\nscore_mod = score + t[h, min(abs(q_idx - kv_idx), 63)]"},
        {"buffer s: f32[H]\nscore_mod = score + s[h] * abs(kv_idx - q_idx)"},
        {"score_mod = score * score + 1"},
        {"score_mod = 30 * tanh(score / 30)"},
    };
    const auto check = [](const Program& program, DType dtype, int head_dim) {
        if (program.scale >= 0) test::check_on_hopper(case_of(program, dtype, head_dim));
    };
    for (const auto& [dtype, head_dim] :
         {std::pair{DType::bf16, 64}, std::pair{DType::f16, 128}, std::pair{DType::bf16, 256}}) {
        for (const Program& program : kPrograms)
            check(program, dtype, head_dim);
        for (const Program& program : kForms)
            check(program, dtype, head_dim);
    }
}

TEST_SUITE_END();
