// The same bits on every run. The suite of Hopper's kernel is skipped unless asked for, because it
// needs that GPU: tests/gpu runs it.
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include <doctest/doctest.h>

#include "api/case.h"

using namespace flexc;
using flexc::test::Case;

namespace {

// The first is compared with the others. A CPU that is not deterministic shows it at once.
constexpr int kRunsOnGpu = 11, kRunsOnCpu = 3;
constexpr const char* kCausal = "\nmask_mod = q_idx >= kv_idx";

void check(Case one, Device device) {
    static std::random_device source;
    const std::uint32_t seed = source();
    one.deterministic = true;
    one.runs = device.kind == Device::Kind::cuda ? kRunsOnGpu : kRunsOnCpu;
    CAPTURE(one.text);
    CAPTURE(seed);
    CAPTURE(test::name(device));
    CAPTURE(std::string(flexc::name(one.dtype)));
    CHECK(test::run_case(one, device, seed) == "");
}
void check(const Case& one) {
    for (const Device device : test::test_devices())
        check(one, device);
}

// One for each way in which gradients of buffers are summed.
constexpr const char* kClasses[] = {
    "buffer s: f32[H] grad\nscore_mod = score + s[h] * (kv_idx - q_idx) * 0.1",
    "buffer t: f32[] grad\nscore_mod = score * (t + 1)",
    "buffer g: bf16[H, Q_LEN] grad\nscore_mod = score * g[h, q_idx]",
    "buffer c: f32[KV_LEN] grad\nscore_mod = score + c[kv_idx] * c[q_idx % 7]",
    "buffer t: f32[17, H] grad\n"
    "score_mod = score + t[clamp(q_idx - kv_idx + 8, 0, 16), h] + t[3, h] * 0.5",
    "buffer t: f32[H, N] grad\nscore_mod = score + t[h, q_idx - kv_idx + KV_LEN]",
    "buffer r: f32[B, H, Q_LEN, 32] grad\n"
    "score_mod = score + r[b, h, q_idx, kv_idx // 8] + r[b, h, q_idx, kv_idx % 8]",
    "buffer w: f32[5] grad\nbuffer at: i64[Q_LEN]\nscore_mod = score * w[at[q_idx]] + w[h]",
    "buffer s: f32[H] grad\nbuffer u: f32[40] grad\nbuffer c: f32[B, KV_LEN] grad\n"
    "score_mod = 3 * tanh((score * s[h] + c[b, kv_idx] + u[(q_idx - kv_idx) // 8 + 20]) / 3)",
    "buffer t: f16[H, 61, 15] grad\n"
    "score_mod = score + t[h, q_idx // 8 - kv_idx // 8 + 30, q_idx % 8 - kv_idx % 8 + 7]",
    "buffer r: bf16[B, H, KV_LEN, 33] grad\n"
    "score_mod = score + r[b, h, kv_idx, clamp(q_idx - kv_idx, -16, 16) + 16]",
    "buffer t: f32[5, 5, H] grad\nbuffer g: i32[KV_LEN]\n"
    "score_mod = score * (1 + t[g[q_idx % KV_LEN], g[kv_idx], h])",
    "buffer t: f32[H, 9] grad\nbuffer x: f32[KV_LEN]\n"
    "score_mod = score + t[h, min(int(abs(x[q_idx % KV_LEN] - x[kv_idx]) * 4), 8)]",
    // All elements on one entry, and more entries than any kernel keeps.
    "buffer t: f32[9] grad\nbuffer d: i64[Q_LEN, KV_LEN]\nscore_mod = score + t[d[q_idx, kv_idx] "
    "// 9]",
    "buffer t: f32[50000] grad\nscore_mod = score + t[(q_idx * 311 + kv_idx * 17) % 50000]",
};
// Heads take turns, or need not.
constexpr const char* kDense[] = {
    "buffer bias: f32[B, H, Q_LEN, KV_LEN] grad\nscore_mod = score + bias[b, h, q_idx, kv_idx]",
    "buffer bias: bf16[H, Q_LEN, KV_LEN] grad\nscore_mod = score + bias[h, q_idx, kv_idx]",
    "buffer bias: f32[KV_LEN, Q_LEN] grad\nscore_mod = score * bias[kv_idx, q_idx]",
    "buffer bias: f32[KV_LEN, KV_LEN] grad\n"
    "score_mod = score + bias[q_idx, kv_idx] + bias[kv_idx, q_idx]",
    "buffer bias: f32[Q_LEN, KV_LEN] grad\nbuffer s: f32[H] grad\nbuffer doc: i32[B, KV_LEN]\n"
    "score_mod = score * s[h] + bias[q_idx, kv_idx]\nmask_mod = doc[b, q_idx] == doc[b, kv_idx]",
};

} // namespace

TEST_CASE("deterministic: gradients of every class, of grouped heads and odd lengths") {
    for (const char* text : kClasses)
        for (const bool causal : {false, true})
            check({.text = std::string(text) + (causal ? kCausal : ""),
                   .dtype = causal ? DType::bf16 : DType::f32,
                   .batch = causal ? 1 : 2,
                   .q_len = causal ? 141 : 67,
                   .kv_len = causal ? 141 : 203,
                   .head_dim = 24,
                   .dims = {{"N", 410}}});
    for (const char* text : kDense)
        for (const BackwardKernel kernel : {BackwardKernel::automatic, BackwardKernel::fused})
            check({.text = text,
                   .dtype = DType::bf16,
                   .q_len = 71,
                   .kv_len = 197,
                   .head_dim = 16,
                   .integers = {{"doc", [](std::int64_t i) { return i / 60; }}},
                   .backward_kernel = kernel});
}

TEST_CASE("deterministic: what is hidden sends nothing, NaN and infinity included") {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    check({.text = std::string("buffer c: f32[KV_LEN] grad\nscore_mod = score + c[kv_idx]\n"
                               "mask_mod = kv_idx < 100 and q_idx >= kv_idx"),
           .dtype = DType::f16,
           .q_len = 150,
           .kv_len = 150,
           .reals = {{"c", [nan](std::int64_t i) {
                          return i < 100 ? 0.1 * static_cast<double>(i % 7) : nan;
                      }}}});
}

TEST_CASE("deterministic: the plan says which kernels, and why none is fused") {
    const auto plan = [](const std::string& text, BackwardKernel kernel) {
        const auto said =
            explain(text, "plan",
                    {.head_dim = 128, .backward_kernel = kernel, .deterministic = true}, "sm_90a");
        return said ? *said : said.error().message;
    };
    const auto has = [](const std::string& text, const char* part) {
        CAPTURE(text);
        CHECK(text.find(part) != std::string::npos);
    };
    const std::string slopes = std::string(kClasses[0]) + kCausal;
    has(plan(slopes, BackwardKernel::generic), "not fused: generic kernels were asked for");
    has(plan(slopes, BackwardKernel::generic), "flexc_round_sums");
    for (const BackwardKernel kernel : {BackwardKernel::automatic, BackwardKernel::fused}) {
        has(plan(slopes, kernel), "in the order of keys");
        has(plan(slopes, kernel), "flexc_round_sums");
    }
    has(plan(kDense[1], BackwardKernel::fused), "not fused: heads take turns");
    CHECK(plan(kDense[1], BackwardKernel::fused).find("round_sums") == std::string::npos);
    has(plan("mask_mod = q_idx % 3 != kv_idx % 3", BackwardKernel::fused),
        "not fused: tiles come from a block mask");
}

TEST_SUITE_BEGIN("hopper");

TEST_CASE("deterministic: dq in the order of keys, beside gradients of every class" *
          doctest::skip()) {
    const char* masks[] = {"", kCausal, "\nmask_mod = 0 <= q_idx - kv_idx < 200",
                           "\nmask_mod = kv_idx - q_idx > 90", "\nmask_mod = q_idx % 3 != 1"};
    for (const char* mask : masks)
        for (const int head_dim : {64, 128}) {
            Case one = {.text = std::string("score_mod = score") + mask,
                        .dtype = DType::bf16,
                        .batch = 1,
                        .heads = 2,
                        .kv_heads = 1,
                        .q_len = 261,
                        .kv_len = 525,
                        .head_dim = head_dim,
                        .backward_kernel = BackwardKernel::fused};
            check(one, Device::cuda(0));
            one.q_offset = 177;
            check(one, Device::cuda(0));
        }
    // More blocks than a GPU has multiprocessors.
    check({.text = kCausal,
           .dtype = DType::bf16,
           .batch = 11,
           .heads = 10,
           .kv_heads = 5,
           .q_len = 65,
           .kv_len = 260,
           .head_dim = 64,
           .backward_kernel = BackwardKernel::fused},
          Device::cuda(0));
    for (const char* text : kClasses)
        for (const int head_dim : {64, 128})
            check({.text = std::string(text) + kCausal,
                   .dtype = head_dim == 64 ? DType::f16 : DType::bf16,
                   .batch = 1,
                   .q_len = 261,
                   .kv_len = 261,
                   .head_dim = head_dim,
                   .dims = {{"N", 700}},
                   .backward_kernel = BackwardKernel::fused},
                  Device::cuda(0));
    // Tensors that TMA cannot walk go to the split kernels.
    check({.text = std::string(kClasses[4]) + kCausal,
           .dtype = DType::bf16,
           .head_dim = 64,
           .strided = true,
           .backward_kernel = BackwardKernel::fused},
          Device::cuda(0));
}

TEST_SUITE_END();
