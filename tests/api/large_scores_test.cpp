// Scores of any finite size: additive masks, and whatever else takes scores beyond what one float
// can say of a row.
#include <doctest/doctest.h>

#include "api/case.h"
#include "api/hopper_check.h"

using namespace flexc;
using flexc::test::Case;
using flexc::test::check_everywhere;

namespace {

constexpr const char* kPrograms[] = {
    "score_mod = score + 1e10",
    "score_mod = score - 1e9",
    "score_mod = score * 1e5",
    "score_mod = score * 2.0 ** 40",
    "score_mod = where(q_idx >= 1, score, -3.4028234663852886e38)",
    "score_mod = where(q_idx % 3 != 0, score, -1e30)",
    "score_mod = where(kv_idx + 9 <= q_idx, score, -3.4028234663852886e38)",
    "score_mod = score + where(kv_idx + 9 <= q_idx, 0.0, -3.4028234663852886e38)",
    "score_mod = score - 1e9 * (q_idx % 3)\nmask_mod = q_idx >= kv_idx",
    "score_mod = score + 1e10 * (kv_idx // 100 % 2)",
    "score_mod = score + 9000.0\nmask_mod = abs(q_idx - kv_idx) < 45",
    "score_mod = 3e38 if (kv_idx + q_idx) % 5 == 0 else -3e38",
    "score_mod = -inf if (kv_idx + q_idx) % 5 == 0 else score - 1e12",
    // Derivatives, and gradients, that need the score.
    "buffer a: f32[H] grad\nscore_mod = 1e8 + 20 * tanh(score * a[h] / 20)",
    "buffer a: f32[Q_LEN] grad\nscore_mod = score * a[q_idx] - where(q_idx % 4 == 0, 1e12, 0.0)",
    "buffer a: f32[H, KV_LEN] grad\nscore_mod = score + a[h, kv_idx] - 9000.0 * (q_idx % 2)",
    "buffer a: f32[H, N] grad\nscore_mod = score + a[h, abs(q_idx - kv_idx)] + 9000.0",
};

Case sized(const char* text, DType dtype, int head_dim) {
    Case one = {.text = text, .dtype = dtype, .batch = 1, .heads = 4, .kv_heads = 2};
    one.q_len = 150;
    one.kv_len = 333;
    one.head_dim = head_dim;
    one.dims = {{"N", 1000}};
    one.scale = 0.125;
    one.large_scores = true;
    // Multiples of 1/64, which are added to scores without rounding.
    one.reals["a"] = [](std::int64_t i) { return static_cast<double>(i * 37 % 64 - 32) / 64; };
    return one;
}

// Dense biases that hide all keys of some rows, as models with additive masks have.
Case masked_by_bias(DType dtype, int head_dim, const char* type, double hidden) {
    Case one = sized("", dtype, head_dim);
    one.text = std::string("buffer bias: ") + type +
               "[H, Q_LEN, KV_LEN]\nscore_mod = score + bias[h, q_idx, kv_idx]";
    one.reals["bias"] = [=](std::int64_t position) {
        const std::int64_t key = position % 333, query = position / 333 % 150;
        return query % 5 == 3 || (key + query) % 7 < 3 ? hidden
                                                       : 0.25 * static_cast<double>(key % 9);
    };
    return one;
}

// The least finite bf16, and one that f32 alone has.
constexpr double kLeastNarrow = -0x1.fep127, kLeastFloat = -0x1.fffffep127;

} // namespace

TEST_CASE("scores of any finite size") {
    for (const char* text : kPrograms)
        for (const DType dtype : {DType::f32, DType::bf16})
            for (const BackwardKernel kernel : {BackwardKernel::fused, BackwardKernel::split}) {
                Case one = sized(text, dtype, 64);
                one.forward_kernel = ForwardKernel::generic;
                one.backward_kernel = kernel;
                check_everywhere(one);
            }
}

TEST_CASE("additive masks in buffers") {
    for (const DType dtype : {DType::f32, DType::bf16}) {
        check_everywhere(masked_by_bias(dtype, 64, "f32", kLeastFloat));
        check_everywhere(masked_by_bias(dtype, 64, "bf16", kLeastNarrow));
    }
}

TEST_SUITE_BEGIN("hopper");

TEST_CASE("scores of any finite size, first half, on Hopper" * doctest::skip()) {
    for (const char* text : kPrograms)
        for (const int head_dim : {64, 128})
            test::check_on_hopper(sized(text, DType::bf16, head_dim));
}

TEST_CASE("scores of any finite size, second half, on Hopper" * doctest::skip()) {
    for (const char* text : kPrograms) {
        // dS has no room in f16 where a derivative is larger than its largest number.
        if (!std::string(text).starts_with("score_mod = score *"))
            test::check_on_hopper(sized(text, DType::f16, 64));
        test::check_on_hopper(sized(text, DType::bf16, 256));
    }
}

TEST_CASE("scores of any finite size, by generic kernels, on Hopper" * doctest::skip()) {
    for (const char* text : kPrograms)
        for (const DType dtype : {DType::f32, DType::bf16})
            for (const BackwardKernel kernel : {BackwardKernel::generic, BackwardKernel::split}) {
                Case one = sized(text, dtype, 64);
                one.forward_kernel = ForwardKernel::generic;
                one.backward_kernel = kernel;
                test::check_on_gpu(one);
            }
}

// Rows that are measured again, of widths whose words or steps of products end past a row.
TEST_CASE("rows of large lse at odd widths, on Hopper" * doctest::skip()) {
    constexpr const char* kOfRows[] = {
        "score_mod = score + 9000.0",
        "score_mod = score - 9000.0 * (q_idx % 3)\nmask_mod = q_idx + 40 >= kv_idx",
        "buffer a: f32[H] grad\nscore_mod = score + 64 * a[h] * (kv_idx - q_idx)",
    };
    for (const char* text : kOfRows)
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
            for (const int head_dim : {33, 80, 250}) {
                Case one = sized(text, dtype, head_dim);
                one.kv_len = 301 + head_dim;
                one.strided = head_dim == 80;
                one.deterministic = head_dim == 33;
                test::check_on_gpu(one);
            }
}

TEST_CASE("additive masks in buffers, on Hopper" * doctest::skip()) {
    for (const int head_dim : {64, 128}) {
        test::check_on_hopper(masked_by_bias(DType::bf16, head_dim, "f32", kLeastFloat));
        test::check_on_hopper(masked_by_bias(DType::bf16, head_dim, "bf16", kLeastNarrow));
        test::check_on_hopper(masked_by_bias(DType::f16, head_dim, "f16", -65504));
    }
}

// Scores that are large without a mod.
TEST_CASE("large products, on Hopper" * doctest::skip()) {
    for (const float scale : {0x1p14F, 0x1p24F, 0x1p40F})
        for (const int head_dim : {64, 128, 256})
            for (const char* text : {"", "mask_mod = q_idx >= kv_idx"}) {
                Case one = sized(text, DType::bf16, head_dim);
                one.scale = scale;
                test::check_on_hopper(one);
            }
}

TEST_SUITE_END();
