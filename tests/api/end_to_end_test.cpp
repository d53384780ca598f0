#include <random>

#include <doctest/doctest.h>

#include "api/case.h"

using namespace flexc;
using flexc::test::Case;

namespace {

constexpr const char* kCausal = "mask_mod = q_idx >= kv_idx\n";

void check(const Case& one, bool on_cpu = true) {
    static std::random_device source;
    const std::uint32_t seed = source();
    for (const Device device : test::test_devices()) {
        if (!on_cpu && device.kind == Device::Kind::cpu) continue;
        CAPTURE(one.text);
        CAPTURE(seed);
        CAPTURE(test::name(device));
        CAPTURE(std::string(flexc::name(one.dtype)));
        CHECK(test::run_case(one, device, seed) == "");
    }
}

} // namespace

TEST_CASE("programs") {
    const char* texts[] = {
        "score_mod = score",
        "mask_mod = q_idx >= kv_idx",
        "score * 2",
        "score_mod = score + (q_idx - kv_idx)",
        "score_mod = score * score",
        "score_mod = sin(cos(score)) + tan(b)",
        "score_mod = score - q_idx // (1 + kv_idx)",
        "score_mod = silu(score)",
        "score_mod = where(score > 0.5, log(score), score)",
        "score_mod = score if kv_idx % 2 == 0 else float('-inf')",
        "param cap: f32 = 2.5\nscore_mod = cap * tanh(score / cap)\nmask_mod = q_idx >= kv_idx",
        "buffer slopes: f32[H] grad\nscore_mod = score + slopes[h] * (kv_idx - q_idx)\n"
        "mask_mod = q_idx >= kv_idx",
        "buffer t: f32[B, H] grad\nscore_mod = score * (t[b, h] + 1)",
        "buffer t: f32[] grad\nscore_mod = score * t",
        "buffer g: bf16[H, Q_LEN] grad\nscore_mod = score * g[h, q_idx]",
        "buffer bias: f16[KV_LEN] grad\nscore_mod = score + bias[kv_idx]",
        "buffer bias: f32[KV_LEN] grad\nscore_mod = score + bias[q_idx] * bias[kv_idx]",
        "buffer bias: f32[H, Q_LEN, KV_LEN] grad\nscore_mod = score + bias[h, q_idx, kv_idx]",
        "buffer bias: f32[KV_LEN, Q_LEN] grad\nscore_mod = score + bias[kv_idx, q_idx]",
        "buffer bias: bf16[Q_LEN] grad\nbuffer at: i64[Q_LEN]\nscore_mod = score + bias[at[q_idx]]",
        "buffer bias: f32[17] grad\nscore_mod = score + bias[clamp(q_idx - kv_idx + 8, 0, 16)]",
        "buffer g: f32[H] grad\nscore_mod = score * sigmoid(g[h])",
        "buffer a: f32[Q_LEN] grad\nbuffer c: bf16[KV_LEN] grad\nscore_mod = score + a[q_idx] + "
        "c[kv_idx]",
        "buffer bias: f32[Q_LEN] grad\nscore_mod = bias[q_idx] * kv_idx * 0.1",
        "buffer doc: i32[KV_LEN]\nmask_mod = doc[q_idx] == doc[kv_idx] and q_idx >= kv_idx",
        "buffer len: i32[B]\nmask_mod = q_idx < 20 * len[b] + 5 and kv_idx < 20 * len[b] + 7",
        "mask_mod = q_idx >= kv_idx and q_idx - kv_idx <= 9",
        "mask_mod = 0 <= q_idx - kv_idx < 9 or kv_idx < 4",
        "mask_mod = abs(q_idx // 8 - kv_idx // 8) <= 1 and abs(q_idx % 8 - kv_idx % 8) <= 2",
        "mask_mod = q_idx > kv_idx and kv_idx > q_idx",
        "score_mod = 1 / (score - score)\nmask_mod = false",
        "score_mod = log(score * score + 1) if q_idx >= kv_idx else 0.0 / 0.0\nmask_mod = q_idx >= "
        "kv_idx",
        "buffer e: u8[KV_LEN]\nbuffer f: i8[H]\nbuffer g: i16[B]\nbuffer m: bool[KV_LEN]\nbuffer "
        "d: f64[H]\n"
        "score_mod = score + e[kv_idx] * 0.1 + f[h] + g[b] + d[h]\nmask_mod = m[kv_idx] or q_idx "
        ">= kv_idx",
        "buffer w: f32[N] grad\nscore_mod = score + w[q_idx + kv_idx]",
        "score_mod = min(max(score, -0.5), 0.5) + clamp(score, -1, 1) + abs(score)",
        "score_mod = score ** 2 + exp2(score) * 0.1 + erf(score) + gelu(score) + softplus(score)",
    };
    for (const char* text : texts)
        check({.text = text, .dims = {{"N", 40}}});
}

TEST_CASE("types and head dims") {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
        for (const auto& [d, dv] : {std::pair{1, 1},
                                    {8, 24},
                                    {17, 5},
                                    {64, 64},
                                    {80, 80},
                                    {96, 128},
                                    {128, 128},
                                    {192, 128},
                                    {256, 256}})
            check({.text = std::string(
                               "buffer s: f32[H] grad\nscore_mod = score + s[h] * kv_idx * 0.1\n") +
                           kCausal,
                   .dtype = dtype,
                   .batch = 1,
                   .heads = 2,
                   .kv_heads = 1,
                   .q_len = 33,
                   .kv_len = 70,
                   .head_dim = d,
                   .head_dim_v = dv});
}

TEST_CASE("lengths and groups") {
    for (const auto& [q, kv] :
         {std::pair{1, 1}, {1, 130}, {130, 1}, {64, 64}, {129, 257}, {200, 65}})
        for (const auto& [h, h_kv] : {std::pair{1, 1}, {6, 2}, {5, 1}})
            check({.text = std::string("score_mod = score + h * 0.1 - h_kv\n") + kCausal,
                   .dtype = DType::bf16,
                   .batch = 1,
                   .heads = h,
                   .kv_heads = h_kv,
                   .q_len = q,
                   .kv_len = kv,
                   .head_dim = 32});
}

TEST_CASE("strides, offsets, f32 outputs, the gradient of lse, kernels") {
    const std::string text =
        std::string("buffer t: f32[Q_LEN] grad\n"
                    "score_mod = score + t[q_idx] * (kv_idx - q_idx) * 0.1\n") +
        "mask_mod = q_idx + 3 >= kv_idx";
    for (const DType dtype : {DType::f32, DType::bf16}) {
        check({.text = text, .dtype = dtype, .strided = true});
        check({.text = text, .dtype = dtype, .with_d_lse = true});
        check({.text = text, .dtype = dtype, .f32_outputs = true});
        check({.text = text, .dtype = dtype, .q_offset = 31, .kv_offset = 7});
        check({.text = text, .dtype = dtype, .backward_kernel = BackwardKernel::split});
        check({.text = text, .dtype = dtype, .backward_kernel = BackwardKernel::fused});
    }
}

TEST_CASE("tiles of 128 and 192 rows, their ends, and what the copy engine walks") {
    const Case base = {.text = kCausal,
                       .dtype = DType::bf16,
                       .batch = 1,
                       .heads = 2,
                       .kv_heads = 1,
                       .q_len = 150,
                       .kv_len = 170,
                       .head_dim = 64};
    const auto with = [&](auto change) {
        Case one = base;
        change(one);
        check(one, false);
    };
    for (const auto& [d, dv] : {std::pair{64, 64},
                                {80, 80},
                                {96, 96},
                                {112, 112},
                                {128, 128},
                                {192, 192},
                                {192, 128},
                                {256, 256},
                                {64, 256},
                                {256, 64},
                                {40, 72}})
        with([&, head_dim = d, head_dim_v = dv](Case& one) {
            one.head_dim = head_dim;
            one.head_dim_v = head_dim_v;
        });
    // More tiles than a GPU has multiprocessors, and a queue of them.
    with([](Case& one) {
        one.batch = 9;
        one.heads = 20;
        one.kv_heads = 5;
        one.q_len = one.kv_len = 20;
    });
    for (const auto& [q, kv] : {std::pair{1, 1}, {193, 1}, {1, 257}, {128, 128}, {192, 256}})
        with([&, q_len = q, kv_len = kv](Case& one) {
            one.q_len = q_len;
            one.kv_len = kv_len;
            one.text = "score_mod = score + (q_idx - kv_idx) * 0.01";
        });
    with([](Case& one) { one.strided = true; });
    with([](Case& one) {
        one.strided = true;
        one.padding = 8;
    });
    with([](Case& one) { one.f32_outputs = true; });
    with([](Case& one) {
        one.q_offset = 40;
        one.kv_offset = 7;
    });
    for (const char* mask :
         {"mask_mod = 0 <= q_idx - kv_idx < 40", "mask_mod = q_idx - kv_idx > 60",
          "mask_mod = abs(q_idx - kv_idx) <= 5", "mask_mod = kv_idx < 30 or q_idx >= kv_idx",
          "mask_mod = q_idx > kv_idx and kv_idx > q_idx", "mask_mod = q_idx % 2 == 0"})
        with([&](Case& one) { one.text = mask; });
}

TEST_CASE("score mods in the exponent") {
    const char* texts[] = {
        "buffer s: f32[H] grad\nscore_mod = score + s[h] * (kv_idx - q_idx) * 0.1",
        "buffer s: f32[Q_LEN] grad\nscore_mod = score + s[q_idx] * (kv_idx - q_idx) * 0.1",
        "buffer s: f32[H] grad\nscore_mod = score * s[h] + kv_idx * 0.01",
        "buffer g: f32[Q_LEN]\nscore_mod = score * g[q_idx]",
        "buffer r: f32[Q_LEN]\nscore_mod = score + r[q_idx]",
        "buffer c: bf16[KV_LEN] grad\nscore_mod = score - c[kv_idx]",
        "score_mod = score - abs(q_idx - kv_idx) * 0.05 + kv_idx * 0.01",
        "score_mod = 3 * tanh(score / 3)",
        "param cap: f32 = -2.5\nscore_mod = cap * tanh(score / cap) + 0",
        "param cap: f32 = -2.5\nscore_mod = tanh((score + (kv_idx - q_idx) * 0.1) * cap) * cap",
        "param cap: f32 = 0.0\nscore_mod = cap * tanh(score)",
        "buffer bias: bf16[H, Q_LEN, KV_LEN] grad\nscore_mod = score + bias[h, q_idx, kv_idx]",
        "buffer bias: f16[Q_LEN, KV_LEN]\nscore_mod = score * 0.5 + bias[q_idx, kv_idx] * h + h",
        "buffer bias: bf16[B, Q_LEN, KV_LEN]\n"
        "score_mod = 4 * tanh((score + bias[b, q_idx, kv_idx] - kv_idx * 0.01) / 4)",
        "buffer bias: f32[Q_LEN, KV_LEN] grad\nscore_mod = score + bias[q_idx, kv_idx]",
        "score_mod = -inf if q_idx < 20 else score",
        "score_mod = score + (0.0 if q_idx % 3 == 0 else -inf)",
    };
    for (const char* text : texts) {
        Case one = {.text = text, .dtype = DType::bf16, .batch = 1, .heads = 2, .kv_heads = 2};
        one.q_len = 70;
        one.kv_len = 140;
        one.head_dim = 64;
        check(one, false);
        one.text += "\nmask_mod = q_idx >= kv_idx";
        one.dtype = DType::f16;
        one.kv_len = 131;
        one.head_dim = 128;
        check(one, false);
    }
}
