// Hopper's kernels. Skipped unless asked for, because they need that GPU: tests/gpu runs them.

#include <initializer_list>

#include <doctest/doctest.h>

#include "api/hopper_check.h"
#include "api/random_choices.h"

using namespace flexc;
using flexc::test::below;
using flexc::test::Case;

namespace {

constexpr const char* kCausal = "mask_mod = q_idx >= kv_idx\n";

void check(const Case& one) { test::check_on_hopper(one); }

const std::string kMasks[] = {"", kCausal, "mask_mod = abs(q_idx - kv_idx) < 50",
                              "mask_mod = kv_idx % 3 != q_idx % 5",
                              "mask_mod = kv_idx < 30 or q_idx >= kv_idx"};

// At random lengths and offsets.
void check_wide(int head_dim, int head_dim_v, DType dtype, const std::string& text) {
    Case one = {.text = text, .dtype = dtype, .batch = 2, .heads = 2, .kv_heads = 1};
    one.q_len = 1 + below(220);
    one.kv_len = 1 + below(220);
    one.head_dim = head_dim;
    one.head_dim_v = head_dim_v;
    one.dims = {{"N", 1000}};
    one.q_offset = below(40);
    one.kv_offset = below(40);
    one.strided = head_dim == 248;
    one.padding = 8;
    one.f32_outputs = below(3) == 0;
    one.with_d_lse = below(2) == 0;
    one.backward_kernel = BackwardKernel::specialized;
    check(one);
}

const std::string kWindow = "\nmask_mod = 0 <= q_idx - kv_idx < 140";

// Bands with both ends and block masks: blocks go from one of more tiles of keys than run at once
// to the next.
void check_persistent_blocks(Case one) {
    one.dtype = DType::bf16;
    one.batch = 6;
    one.kv_heads = 4;
    one.q_len = 130 + below(40);
    one.kv_len = 641 + below(120);
    one.backward_kernel = BackwardKernel::specialized;
    for (const int head_dim : {64, 128}) {
        one.head_dim = head_dim;
        check(one);
    }
}

} // namespace

TEST_SUITE_BEGIN("hopper");

TEST_CASE("tiles of 128 and 192 rows, their ends, and what TMA walks" * doctest::skip()) {
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
        check(one);
    };
    for (const auto& [d, dv] : {std::pair{64, 64},
                                {80, 80},
                                {96, 96},
                                {88, 88},
                                {104, 104},
                                {112, 112},
                                {120, 120},
                                {64, 104},
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

// dk and dv go through shared memory, 32 columns of 16 keys at a time.
TEST_CASE("gradients as floats, stored and added" * doctest::skip()) {
    for (const bool accumulates : {false, true})
        for (const auto& [d, dv] : {std::pair{8, 64},
                                    {64, 24},
                                    {72, 72},
                                    {96, 40},
                                    {128, 128},
                                    {136, 64},
                                    {192, 192},
                                    {256, 256}}) {
            Case one = {.text = d == dv ? kCausal : "mask_mod = abs(q_idx - kv_idx) < 50",
                        .dtype = DType::bf16,
                        .batch = 2,
                        .heads = 4,
                        .kv_heads = 2,
                        .head_dim = d,
                        .head_dim_v = dv,
                        .strided = d < dv || d == 128,
                        .padding = 8,
                        .f32_outputs = true,
                        .accumulates = accumulates,
                        .backward_kernel = BackwardKernel::specialized};
            one.q_len = 1 + below(300);
            one.kv_len = 1 + below(300);
            check(one);
        }
}

TEST_CASE("more blocks of a backward than run at once, bands that hide halves of tiles" *
          doctest::skip()) {
    for (const int head_dim : {64, 96, 128})
        for (const char* mask :
             {"mask_mod = q_idx >= kv_idx", "mask_mod = abs(q_idx - kv_idx) < 130",
              "mask_mod = 0 <= q_idx - kv_idx < 90", "mask_mod = q_idx >= kv_idx + 200", ""}) {
            Case one = {
                .text = mask, .dtype = DType::bf16, .batch = 4, .heads = 14, .kv_heads = 14};
            one.q_len = 1 + below(300);
            one.kv_len = 400 + below(100);
            one.head_dim = head_dim;
            one.q_offset = below(200);
            one.backward_kernel = BackwardKernel::specialized;
            check(one);
        }
}

TEST_CASE("blocks that stay, gradients" * doctest::skip()) {
    for (const char* score :
         {"score_mod = score", "buffer s: f32[H] grad\nscore_mod = score * s[h]",
          "buffer r: f32[Q_LEN] grad\nscore_mod = score + r[q_idx]",
          "buffer g: f32[H, Q_LEN] grad\nscore_mod = score * tanh(g[h, q_idx])",
          "buffer c: f32[KV_LEN] grad\nscore_mod = score + c[kv_idx]",
          "buffer d: bf16[Q_LEN, KV_LEN]\nscore_mod = score + d[q_idx, kv_idx]",
          "score_mod = 3 * tanh(score / 3)"})
        check_persistent_blocks({.text = score + kWindow, .heads = 4, .q_offset = 120});
}

TEST_CASE("blocks that stay, groups of heads and keys that nobody sees" * doctest::skip()) {
    for (const char* mask : {"mask_mod = 200 <= q_idx - kv_idx < 330",
                             "mask_mod = 0 <= q_idx - kv_idx < 100 * (h % 3)",
                             "mask_mod = (q_idx // 90 == kv_idx // 90 or h == 1) and h != 2"}) {
        check_persistent_blocks({.text = mask, .heads = 4, .q_offset = 100, .f32_outputs = true});
        check_persistent_blocks({.text = mask, .heads = 8, .q_offset = 77});
    }
}

TEST_CASE("blocks that stay, in the order of keys" * doctest::skip()) {
    check_persistent_blocks(
        {.text = "score_mod = score" + kWindow, .heads = 8, .deterministic = true, .runs = 3});
}

namespace {

// With a head dim of 64, and behind a mask with one of 128.
void check_in_exponent(std::initializer_list<const char*> texts) {
    for (const char* text : texts) {
        Case one = {.text = text, .dtype = DType::bf16, .batch = 1, .heads = 2, .kv_heads = 2};
        one.q_len = 70;
        one.kv_len = 140;
        one.head_dim = 64;
        check(one);
        one.text += "\nmask_mod = q_idx >= kv_idx";
        one.dtype = DType::f16;
        one.kv_len = 131;
        one.head_dim = 128;
        check(one);
    }
}

} // namespace

TEST_CASE("score mods in the exponent: what grows with keys, and by row and key" *
          doctest::skip()) {
    check_in_exponent({
        "buffer s: f32[H] grad\nscore_mod = score + s[h] * (kv_idx - q_idx) * 0.1",
        "buffer s: f32[Q_LEN] grad\nscore_mod = score + s[q_idx] * (kv_idx - q_idx) * 0.1",
        "buffer s: f32[H] grad\nscore_mod = score * s[h] + kv_idx * 0.01",
        "buffer g: f32[Q_LEN]\nscore_mod = score * g[q_idx]",
        "buffer r: f32[Q_LEN]\nscore_mod = score + r[q_idx]",
        "buffer c: bf16[KV_LEN] grad\nscore_mod = score - c[kv_idx]",
        "score_mod = score - abs(q_idx - kv_idx) * 0.05 + kv_idx * 0.01",
    });
}

TEST_CASE("score mods in the exponent: caps and clamps" * doctest::skip()) {
    check_in_exponent({
        "score_mod = 3 * tanh(score / 3)",
        "score_mod = 50 * tanh(score / 50)",
        "score_mod = clamp(score, -2, 1)",
        "param cap: f32 = -2.5\nscore_mod = cap * tanh(score / cap) + 0",
        "param cap: f32 = -2.5\nscore_mod = tanh((score + (kv_idx - q_idx) * 0.1) * cap) * cap",
        "param cap: f32 = 0.0\nscore_mod = cap * tanh(score)",
    });
}

TEST_CASE("score mods in the exponent: dense biases and conditions" * doctest::skip()) {
    check_in_exponent({
        "buffer bias: bf16[H, Q_LEN, KV_LEN] grad\nscore_mod = score + bias[h, q_idx, kv_idx]",
        "buffer bias: f16[Q_LEN, KV_LEN]\nscore_mod = score * 0.5 + bias[q_idx, kv_idx] * h + h",
        "buffer bias: bf16[B, Q_LEN, KV_LEN]\n"
        "score_mod = 4 * tanh((score + bias[b, q_idx, kv_idx] - kv_idx * 0.01) / 4)",
        "buffer bias: f32[Q_LEN, KV_LEN] grad\nscore_mod = score + bias[q_idx, kv_idx]",
        "score_mod = -inf if q_idx < 20 else score",
        "score_mod = score + (0.0 if q_idx % 3 == 0 else -inf)",
    });
}

namespace {

struct Kind {
    int head_dim;
    DType dtype;
};

// With tiles and registers of one head dim, and behind a mask with those of another.
void check_terms(const std::string& text, Kind kind, Kind behind_mask) {
    Case one = {.text = text, .batch = 2, .heads = 4, .kv_heads = 2};
    one.dims = {{"N", 1000}};
    one.dtype = kind.dtype;
    one.head_dim = kind.head_dim;
    one.q_len = 261;
    one.kv_len = 403;
    check(one);
    one.text += "\nmask_mod = q_idx >= kv_idx";
    one.dtype = behind_mask.dtype;
    one.head_dim = behind_mask.head_dim;
    std::swap(one.q_len, one.kv_len);
    one.q_offset = 31;
    one.kv_offset = 5;
    check(one);
}

} // namespace

TEST_CASE("terms of keys" * doctest::skip()) {
    check_terms("buffer c: bf16[B, H, KV_LEN]\nscore_mod = score - c[b, h, kv_idx]",
                {64, DType::bf16}, {128, DType::bf16});
    check_terms("buffer c: i32[KV_LEN]\nscore_mod = score + (-inf if c[kv_idx] == 2 else 0.25)",
                {128, DType::f16}, {256, DType::bf16});
}

TEST_CASE("terms of distances" * doctest::skip()) {
    // Outside the buffer for most elements.
    check_terms("buffer t: f32[B, 90] grad\nscore_mod = score + t[b, q_idx - kv_idx]\n",
                {128, DType::f16}, {80, DType::bf16});
    check_terms("buffer t: f16[H, N]\n"
                "score_mod = score * 0.5 + t[h, q_idx - kv_idx + KV_LEN] * 2 - b",
                {128, DType::bf16}, {192, DType::f16});
}

TEST_CASE("terms of distances that take long to compute" * doctest::skip()) {
    check_terms("buffer t: f32[32, H] grad\nscore_mod {\n"
                "  d = max(q_idx - kv_idx, 0)\n"
                "  far = 16 + int(log(max(d, 1) / 16) / log(8.0) * 16)\n"
                "  score + t[d if d < 16 else min(far, 31), h]\n}\n",
                {64, DType::f16}, {128, DType::f16});
}

TEST_CASE("terms of keys beside terms of distances" * doctest::skip()) {
    check_terms("buffer c: f16[KV_LEN] grad\nbuffer t: bf16[H, N] grad\nbuffer s: f32[H]\n"
                "score_mod = score - c[kv_idx] * s[h] + t[h, kv_idx - q_idx + Q_LEN] + "
                "s[h] * (kv_idx - q_idx) * 0.05",
                {80, DType::bf16}, {256, DType::bf16});
    check_terms("buffer c: f32[KV_LEN]\nbuffer t: f32[17]\nscore_mod = "
                "-3 * tanh((score + c[kv_idx] + t[min(abs(q_idx - kv_idx), 16)]) / 3)",
                {128, DType::f16}, {64, DType::bf16});
}

TEST_CASE("terms of keys and distances beside terms of elements" * doctest::skip()) {
    check_terms("buffer c: f32[KV_LEN]\nbuffer bias: bf16[H, Q_LEN, KV_LEN]\nscore_mod = score + "
                "c[kv_idx] + bias[h, q_idx, kv_idx] - log(1 + abs(q_idx - kv_idx))",
                {64, DType::bf16}, {128, DType::f16});
}

TEST_CASE("factors and conditions of keys and distances" * doctest::skip()) {
    check_terms("buffer w: f32[KV_LEN] grad\nbuffer t: bf16[H, N]\n"
                "score_mod = score * w[kv_idx] * t[h, q_idx - kv_idx + KV_LEN]",
                {64, DType::bf16}, {128, DType::bf16});
    check_terms("buffer k: i32[B, KV_LEN]\nbuffer f: bool[KV_LEN]\nbuffer r: f32[Q_LEN]\n"
                "score_mod = (score if f[kv_idx] else score * 0.5) + "
                "(r[q_idx] if k[b, kv_idx] == 3 else 0.0)",
                {128, DType::f16}, {64, DType::bf16});
}

TEST_CASE("derivatives that elements compute from positions" * doctest::skip()) {
    const std::string read = "buffer x: f32[KV_LEN, 2]\nbuffer w: f32[H]\nbuffer bias: "
                             "bf16[H, Q_LEN, KV_LEN]\nscore_mod = score * ";
    const std::string square = "(x[min(q_idx, KV_LEN - 1), 0] - x[kv_idx, 0]) ** 2 + "
                               "(x[min(q_idx, KV_LEN - 1), 1] - x[kv_idx, 1]) ** 2";
    const std::string factors[] = {"exp(-sqrt(" + square + "))",
                                   "tanh(w[h] * 0.02 * (q_idx - kv_idx) * x[kv_idx, 0])",
                                   "sigmoid(" + square + ") + bias[h, q_idx, kv_idx]",
                                   "exp(-abs(w[h]) * abs(q_idx - kv_idx))"};
    for (const std::string& factor : factors)
        for (const auto& [head_dim, head_dim_v] :
             {std::pair(64, 64), std::pair(128, 128), std::pair(80, 40), std::pair(192, 256)})
            check_wide(head_dim, head_dim_v, below(2) == 0 ? DType::bf16 : DType::f16,
                       read + factor + "\n" + kMasks[below(5)]);
    // Rows of large scores, which are relative to references.
    Case large = {.text = read + factors[3] + " + 1e10", .dtype = DType::bf16, .scale = 0.125};
    large.q_len = large.kv_len = 300;
    large.large_scores = true;
    for (const int head_dim : {64, 128}) {
        large.head_dim = head_dim;
        check(large);
    }
}

TEST_CASE("terms of keys and distances beside a block mask" * doctest::skip()) {
    Case mapped = {.text = "buffer c: bf16[KV_LEN]\nbuffer t: f32[H, N]\nbuffer doc: i32[KV_LEN]\n"
                           "score_mod = score + c[kv_idx] + t[h, q_idx - kv_idx + KV_LEN]\n"
                           "mask_mod = doc[q_idx] == doc[kv_idx]",
                   .dtype = DType::bf16};
    mapped.q_len = mapped.kv_len = 700;
    mapped.head_dim = 64;
    mapped.dims = {{"N", 1400}};
    mapped.integers["doc"] = [](std::int64_t position) { return position / 150; };
    check(mapped);
}

TEST_CASE("gradients of buffers, by what their indices use" * doctest::skip()) {
    const char* texts[] = {
        "buffer t: bf16[H, N] grad\nscore_mod = score + t[h, q_idx - kv_idx + KV_LEN]",
        "buffer t: f32[17, H] grad\n"
        "score_mod = score + t[clamp(q_idx - kv_idx + 8, 0, 16), h] + t[3, h] * 0.5",
        "buffer t: f32[17] grad\nbuffer s: f32[H] grad\nbuffer c: f32[KV_LEN] grad\n"
        "score_mod = 3 * tanh((score * s[h] + c[kv_idx] + t[min(abs(q_idx - kv_idx), 16)]) / 3)",
        "buffer t: f32[17] grad\nbuffer u: f32[40] grad\n"
        "score_mod = score + t[min(abs(q_idx - kv_idx), 16)] + u[(q_idx - kv_idx) // 8 + 20]",
        "buffer g: f32[B, Q_LEN] grad\nbuffer c: bf16[H, KV_LEN] grad\n"
        "score_mod = score * g[b, q_idx] + c[h, kv_idx] * (q_idx - kv_idx) * 0.01",
        "buffer r: bf16[B, H, Q_LEN, 32] grad\n"
        "score_mod = score + r[b, h, q_idx, kv_idx // 8] + r[b, h, q_idx, kv_idx % 8]",
    };
    for (const char* text : texts)
        for (const int head_dim : {64, 128}) {
            Case one = {.text = text, .dtype = DType::bf16, .batch = 2, .heads = 4, .kv_heads = 2};
            one.q_len = 141;
            one.kv_len = 203;
            one.head_dim = head_dim;
            one.dims = {{"N", 2 * 203}};
            check(one);
            one.text += "\nmask_mod = q_idx + 60 >= kv_idx";
            one.dtype = DType::f16;
            one.q_offset = 3;
            check(one);
        }
}

// A backward whose warpgroups share their keys. Kernels are the same on every run, so that they can
// be compiled before.
TEST_CASE("heads wider than 128: sizes" * doctest::skip()) {
    constexpr std::pair<int, int> kHeadDims[] = {{136, 136}, {160, 160}, {192, 192},
                                                 {256, 256}, {192, 128}, {64, 256},
                                                 {256, 40},  {248, 144}, {240, 216}};
    int turn = 0;
    for (const auto& [d, dv] : kHeadDims) {
        check_wide(d, dv, DType::bf16, "score_mod = score");
        check_wide(d, dv, DType::f16, "score_mod = score * 0.9\n" + kMasks[++turn % 5]);
    }
}

TEST_CASE("heads wider than 128: mods" * doctest::skip()) {
    const std::string mods[] = {
        "score_mod = 3 * tanh(score / 3)\n",
        "buffer s: f32[H] grad\nscore_mod = score + s[h] * (kv_idx - q_idx) * 0.1\n",
        "buffer s: f32[H] grad\nscore_mod = score * s[h] + kv_idx * 0.01\n",
        ("buffer g: f32[B, Q_LEN] grad\nbuffer c: bf16[H, KV_LEN] grad\n"
         "score_mod = score * g[b, q_idx] + c[h, kv_idx] * (q_idx - kv_idx) * 0.01\n"),
        "buffer s: f32[Q_LEN] grad\nscore_mod = score + s[q_idx] * (kv_idx - q_idx) * 0.1\n",
        "buffer bias: bf16[H, Q_LEN, KV_LEN] grad\nscore_mod = score + bias[h, q_idx, kv_idx]\n",
        "buffer t: bf16[H, N] grad\nscore_mod = score + t[h, q_idx - kv_idx + KV_LEN]\n",
        ("buffer t: f32[17] grad\nbuffer s: f32[H] grad\nbuffer c: f32[KV_LEN] grad\n"
         "score_mod = 3 * tanh((score * s[h] + c[kv_idx] + t[min(abs(q_idx - kv_idx), 16)]) / "
         "3)\n"),
        ("buffer r: bf16[B, H, Q_LEN, 32] grad\n"
         "score_mod = score + r[b, h, q_idx, kv_idx // 16] + r[b, h, q_idx, kv_idx % 16]\n"),
    };
    int turn = 0;
    for (const std::string& mod : mods)
        for (const auto& [d, dv] : {std::pair{256, 256}, {192, 128}})
            check_wide(d, dv, DType::bf16, mod + kMasks[++turn % 5]);
}

TEST_CASE("dense biases, in whole chunks of memory and not" * doctest::skip()) {
    for (const char* type : {"bf16", "f16", "f32"})
        for (const auto& [q_len, kv_len] : {std::pair{150, 264}, {128, 260}, {40, 131}}) {
            Case one = {.text = "buffer bias: " + std::string(type) +
                                "[H, Q_LEN, KV_LEN]\nscore_mod = score + bias[h, q_idx, kv_idx]",
                        .dtype = DType::bf16,
                        .batch = 2,
                        .heads = 2,
                        .kv_heads = 1};
            one.q_len = q_len;
            one.kv_len = kv_len;
            for (const int head_dim : {64, 128, 256}) {
                one.head_dim = one.head_dim_v = head_dim;
                check(one);
            }
        }
}

TEST_SUITE_END();
