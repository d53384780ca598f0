// Dense biases and their gradients in Hopper's fused backward. Skipped unless asked for, because
// they need that GPU: tests/gpu runs them.

#include <doctest/doctest.h>

#include "api/case.h"
#include "api/random_choices.h"

using namespace flexc;
using flexc::test::below;
using flexc::test::Case;

namespace {

constexpr const char* kTypes[] = {"bf16", "f16", "f32"};

void check(Case one) {
    const auto seed = static_cast<std::uint32_t>(below(1 << 30));
    CAPTURE(one.text);
    CAPTURE(one.batch);
    CAPTURE(one.heads);
    CAPTURE(one.kv_heads);
    CAPTURE(one.q_len);
    CAPTURE(one.kv_len);
    CAPTURE(one.head_dim);
    CAPTURE(seed);
    CAPTURE(std::string(flexc::name(one.dtype)));
    CHECK(test::run_case(one, Device::cuda(0), seed) == "");
}

// Lengths with rows of whole chunks of 16 bytes, and others.
void check_lengths(Case one) {
    one.batch = 1 + below(3);
    one.heads = 4;
    one.kv_heads = 1 << below(3);
    one.dtype = below(2) == 0 ? DType::bf16 : DType::f16;
    one.q_len = 1 + below(300);
    one.kv_len = 8 * (1 + below(50));
    check(one);
    one.batch = 2;
    one.kv_heads = 4;
    one.q_len = one.kv_len = 192 + 8 * below(20);
    check(one);
    one.kv_len = 1 + below(300);
    check(one);
}

std::string buffer(const std::string& name, const std::string& dims) {
    return "buffer " + name + ": " + kTypes[below(3)] + "[" + dims + "] grad\n";
}

} // namespace

TEST_SUITE_BEGIN("dense_bias");

TEST_CASE("whoever shares an element" * doctest::skip()) {
    const std::pair<const char*, const char*> places[] = {
        {"H, Q_LEN, KV_LEN", "h, q_idx, kv_idx"},
        {"B, H, Q_LEN, KV_LEN", "b, h, q_idx, kv_idx"},
        {"Q_LEN, KV_LEN", "q_idx, kv_idx"},
        {"B, 1, Q_LEN, KV_LEN", "b, 0, q_idx, kv_idx"},
        {"H_KV, Q_LEN, KV_LEN", "h_kv, q_idx, kv_idx"},
        {"Q_LEN, 3, KV_LEN", "q_idx, 1, kv_idx"},
    };
    for (const auto& [dims, index] : places)
        check_lengths({.text = buffer("bias", dims) + "score_mod = score + bias[" + index + "]",
                       .head_dim = below(2) == 0 ? 64 : 128});
}

TEST_CASE("types and head dims" * doctest::skip()) {
    for (const char* type : kTypes)
        for (const int head_dim : {40, 64, 80, 128})
            check_lengths({.text = "buffer bias: " + std::string(type) +
                                   "[H, Q_LEN, KV_LEN] grad\n"
                                   "score_mod = score + bias[h, q_idx, kv_idx]",
                           .head_dim = head_dim});
}

TEST_CASE("not learned" * doctest::skip()) {
    for (const char* type : kTypes)
        for (const int head_dim : {64, 128})
            check_lengths({.text = "buffer bias: " + std::string(type) +
                                   "[H, Q_LEN, KV_LEN]\nbuffer s: f32[H] grad\n"
                                   "score_mod = score * 0.5 + s[h] * bias[h, q_idx, kv_idx]",
                           .head_dim = head_dim});
}

TEST_CASE("masks" * doctest::skip()) {
    for (const char* mask : {"q_idx >= kv_idx", "abs(q_idx - kv_idx) < 40",
                             "q_idx % 3 != kv_idx % 2", "kv_idx < 30 or q_idx >= kv_idx"})
        check_lengths({.text = buffer("bias", "H, Q_LEN, KV_LEN") +
                               "score_mod = score + bias[h, q_idx, kv_idx]\nmask_mod = " + mask,
                       .head_dim = below(2) == 0 ? 64 : 128});
}

TEST_CASE("other derivatives" * doctest::skip()) {
    const std::string bias = buffer("bias", "H, Q_LEN, KV_LEN"), read = "bias[h, q_idx, kv_idx]";
    const std::string texts[] = {
        bias + "score_mod = score - 0.5 * " + read,
        bias + "score_mod = score * " + read,
        bias + "score_mod = 3 * tanh((score + " + read + ") / 3)",
        bias + buffer("c", "KV_LEN") + "score_mod = 3 * tanh((score + " + read +
            " + c[kv_idx]) / 3)",
        bias + buffer("s", "H") + "score_mod = score * 2 + s[h] * " + read,
        bias + buffer("g", "Q_LEN") + "score_mod = score + exp(" + read + ") * g[q_idx]",
        bias + "score_mod = -inf if q_idx < 20 else score + " + read,
        bias + "score_mod = where(kv_idx % 2 == 0, score + " + read + ", score)",
    };
    for (const std::string& text : texts)
        check_lengths({.text = text, .head_dim = below(2) == 0 ? 64 : 128});
}

TEST_CASE("several reads" * doctest::skip()) {
    const std::string a = buffer("a", "H, Q_LEN, KV_LEN"), c = buffer("c", "Q_LEN, KV_LEN");
    const std::string texts[] = {
        a + c + "score_mod = score + a[h, q_idx, kv_idx] + c[q_idx, kv_idx]",
        a + c + "score_mod = score + a[h, q_idx, kv_idx] * 0.5 + c[q_idx, kv_idx]",
        a + "buffer d: f32[Q_LEN, KV_LEN]\n"
            "score_mod = score + a[h, q_idx, kv_idx] * d[q_idx, kv_idx]",
        a + buffer("k", "KV_LEN") + "score_mod = score + a[h, q_idx, kv_idx] + k[kv_idx]",
        a + buffer("t", "N") +
            "score_mod = score + a[h, q_idx, kv_idx] + t[q_idx - kv_idx + KV_LEN]",
    };
    for (const std::string& text : texts) {
        Case one = {.text = text, .head_dim = below(2) == 0 ? 64 : 128};
        one.dims = {{"N", 1000}};
        check_lengths(one);
    }
    // One buffer twice: once where its elements are, and once elsewhere.
    Case square = {.text = c + "score_mod = score + c[q_idx, kv_idx] + c[kv_idx, q_idx]"};
    square.head_dim = 64;
    square.q_len = square.kv_len = 200;
    square.dtype = DType::bf16;
    check(square);
}

TEST_CASE("parts of longer sequences" * doctest::skip()) {
    for (const int offset : {8, 16, 3}) {
        Case one = {.text = buffer("bias", "H, Q_LEN, KV_LEN") +
                            "score_mod = score + bias[h, q_idx, kv_idx]",
                    .dtype = DType::bf16,
                    .head_dim = 64};
        one.q_len = 130;
        one.kv_len = 144;
        one.q_offset = 5;
        one.kv_offset = offset;
        check(one);
    }
}

TEST_SUITE_END();
