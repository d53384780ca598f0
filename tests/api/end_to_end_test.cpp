#include <doctest/doctest.h>

#include "api/case.h"

using namespace flexc;
using flexc::test::Case;
using flexc::test::check_everywhere;

namespace {

constexpr const char* kCausal = "mask_mod = q_idx >= kv_idx\n";

// Sizes that fill no tile, in bf16.
Case in_part(std::string text, int head_dim) {
    return {.text = std::move(text),
            .dtype = DType::bf16,
            .batch = 2,
            .heads = 2,
            .kv_heads = 1,
            .q_len = 130,
            .kv_len = 150,
            .head_dim = head_dim};
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
        check_everywhere({.text = text, .dims = {{"N", 40}}});
}

TEST_CASE("sums over a captured axis") {
    const char* texts[] = {
        "buffer a: f32[H, Q_LEN, 20] grad\nbuffer c: bf16[KV_LEN, 20] grad\n"
        "score_mod = score + 0.3 * sum(i in 0..20: a[h, q_idx, i] * c[kv_idx, i])\n"
        "mask_mod = q_idx >= kv_idx",
        "buffer p: f32[KV_LEN, R] grad\nscore_mod = score - "
        "sqrt(sum(i in 0..R: (p[q_idx, i] - p[kv_idx, i]) ** 2) + 0.1)",
        "buffer a: f32[Q_LEN, 12] grad\nbuffer c: f32[12, KV_LEN] grad\nscore_mod {\n"
        "  of_query = sqrt(sum(i in 0..12: a[q_idx, i] ** 2) + 1)\n"
        "  of_key = sqrt(sum(i in 0..12: c[i, kv_idx] ** 2) + 1)\n"
        "  score + sum(i in 0..12: a[q_idx, i] / of_query * c[i, kv_idx] / of_key)\n}",
        "buffer w: f32[H, 9] grad\nscore_mod = score * sum(i in 0..9: w[h, i] * cos(i * kv_idx))",
        "buffer w: f32[10] grad\n"
        "score_mod = tanh(sum(i in -1..12: w[i] * where(i < q_idx, score, 0.5)))",
        "buffer list: i32[Q_LEN, 12]\n"
        "mask_mod = kv_idx == 0 or sum(i in 0..12: list[q_idx, i] % KV_LEN == kv_idx) > 0",
    };
    for (const char* text : texts)
        for (const bool strided : {false, true})
            check_everywhere({.text = text,
                              .q_len = strided ? 21 : 13,
                              .kv_len = strided ? 19 : 35,
                              .dims = {{"R", 11}},
                              .strided = strided});
}

TEST_CASE("programs whose backward kernel on a GPU has to save registers") {
    Case one{.dtype = DType::bf16,
             .batch = 1,
             .heads = 2,
             .kv_heads = 1,
             .q_len = 130,
             .kv_len = 150,
             .head_dim = 128,
             .dims = {{"N", 5}, {"EDGES", 5}},
             .backward_kernel = BackwardKernel::generic};
    for (const LibraryEntry& entry : library())
        if (entry.name == "graphormer") one.text = entry.text;
    check_everywhere(one);
    one.text = "buffer a: f32[H, Q_LEN, 20] grad\nbuffer c: f32[KV_LEN, 20] grad\n"
               "score_mod = score + 0.3 * sum(i in 0..20: a[h, q_idx, i] * c[kv_idx, i])\n"
               "mask_mod = q_idx >= kv_idx";
    check_everywhere(one);
}

TEST_CASE("gradients at addresses that take long to compute for each element") {
    const std::string read = "t[b, (q_idx ** (kv_idx % 3)) % Q_LEN, "
                             "doc[(q_idx * kv_idx) % KV_LEN] % KV_LEN]";
    for (const std::string& added : {read, "tanh(" + read + ")"})
        check_everywhere(in_part("buffer t: f32[B, Q_LEN, KV_LEN] grad\n"
                                 "buffer doc: i64[KV_LEN]\nscore_mod = score + " +
                                     added + "\nmask_mod = q_idx >= kv_idx",
                                 128));
}

TEST_CASE("long values of queries beside gradients of sums' terms") {
    for (const int head_dim : {64, 128})
        check_everywhere(in_part("buffer w: f32[H, 20] grad\nbuffer a: f32[Q_LEN]\n"
                                 "score_mod = score + sin(cos(sin(cos(sin(a[q_idx]))))) * "
                                 "sum(i in 0..20: w[h, i] * tanh(0.2 * score * i))\n"
                                 "mask_mod = q_idx >= kv_idx",
                                 head_dim));
}

TEST_CASE("long values that enter sums whose terms have gradients") {
    for (const int head_dim : {64, 128})
        check_everywhere(in_part("buffer w: f32[H, 20] grad\n"
                                 "score_mod = score + sum(i in 0..20: w[h, i] * tanh(0.1 * i * "
                                 "sin(cos(sin(cos(sin(score)))))))\n"
                                 "mask_mod = q_idx >= kv_idx",
                                 head_dim));
}

TEST_CASE("scores and a mask that read different values of keys, with long indices") {
    for (const int head_dim : {64, 128})
        check_everywhere(in_part("buffer doc: i64[KV_LEN]\nbuffer t: f32[Q_LEN] grad\n"
                                 "score_mod = score + t[doc[kv_idx] % Q_LEN]\n"
                                 "mask_mod = doc[kv_idx * 2 % KV_LEN] % Q_LEN < q_idx",
                                 head_dim));
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
            check_everywhere(
                {.text = std::string(
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
            check_everywhere({.text = std::string("score_mod = score + h * 0.1 - h_kv\n") + kCausal,
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
        check_everywhere({.text = text, .dtype = dtype, .strided = true});
        check_everywhere({.text = text, .dtype = dtype, .with_d_lse = true});
        check_everywhere({.text = text, .dtype = dtype, .f32_outputs = true});
        check_everywhere({.text = text, .dtype = dtype, .q_offset = 31, .kv_offset = 7});
        check_everywhere({.text = text, .dtype = dtype, .backward_kernel = BackwardKernel::split});
        check_everywhere({.text = text, .dtype = dtype, .backward_kernel = BackwardKernel::fused});
    }
}

TEST_CASE("gradients of buffers in the buffers' types") {
    const std::string text =
        "buffer a: bf16[H, Q_LEN] grad\nbuffer c: f16[KV_LEN] grad\nbuffer d: f64[H] grad\n"
        "buffer e: f32[B] grad\nbuffer unread: bf16[3] grad\nbuffer bias: f16[H, Q_LEN, KV_LEN] "
        "grad\n"
        "score_mod = score * a[h, q_idx] + c[kv_idx] + d[h] * kv_idx * 0.1 + e[b] * q_idx * 0.1 + "
        "bias[h, q_idx, kv_idx]\n";
    for (const DType dtype : {DType::bf16, DType::f16})
        for (const bool deterministic : {false, true})
            check_everywhere({.text = text + kCausal,
                              .dtype = dtype,
                              .head_dim = 64,
                              .gradient_type = GradientType::buffer,
                              .deterministic = deterministic});
}

TEST_CASE("gradients of other types than f32 are not added to what is there") {
    for (const Device device : test::test_devices()) {
        const auto kernel = compile("buffer c: bf16[KV_LEN] grad\nscore_mod = score + c[kv_idx]",
                                    {.device = device, .gradient_type = GradientType::buffer});
        REQUIRE(kernel);
        const auto plan =
            kernel->plan({.q_len = 8, .kv_len = 8}, {}, {}, {.accumulate_gradients = true});
        REQUIRE(!plan);
        CHECK(plan.error().message.find("gradient of 'c'") != std::string::npos);
    }
}
