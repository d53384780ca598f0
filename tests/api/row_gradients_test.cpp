// Gradients that follow from sums over whole rows of the score matrix. On the GPU of most machines,
// and on the CPU, they are summed as all others are; the suite of Hopper's kernels is skipped
// unless asked for, because it needs that GPU: tests/gpu runs it.
#include <string>

#include <doctest/doctest.h>

#include "api/case.h"
#include "api/random_choices.h"

using namespace flexc;
using flexc::test::below;
using flexc::test::Case;

namespace {

// r is added to whole rows, g multiplies them, c is of keys; an index of `at` may be outside.
constexpr const char* kBuffers = "buffer r: f32[Q_LEN] grad\nbuffer g: f32[H, Q_LEN] grad\n"
                                 "buffer c: f32[KV_LEN] grad\nbuffer s: f32[B, H] grad\n"
                                 "buffer at: i64[Q_LEN]\nscore_mod = ";
constexpr const char* kSums[] = {
    "score + r[at[q_idx]]",
    "score + s[b, h] - r[q_idx] * q_idx * 0.1 + c[kv_idx]",
    "score + r[at[q_idx]] + r[q_idx] * c[kv_idx]",
    "score + (r[q_idx] if q_idx % 3 == 0 else s[b, h]) if q_idx != 20 else -inf",
    "3 * tanh((score + r[q_idx] + s[b, h]) / 3)",
    "score + (r[q_idx] if kv_idx % 2 == 0 else 0.0)",
};
// Factors above 2 would make rows so sharp that 16 bits of o alone reach the tolerance.
constexpr const char* kProducts[] = {
    "score * g[h, q_idx]",
    "score * s[b, h] + r[at[q_idx]]",
    "(score + r[q_idx] - c[kv_idx]) / (s[b, h] + 2)",
    "score * g[h, q_idx] * s[b, h] + c[kv_idx] * (q_idx - kv_idx) * 0.01",
    "score if q_idx % 2 == 0 else score * exp(g[h, at[q_idx]] - 1.5)",
    "score * g[h, q_idx] * c[kv_idx]",
    "score * g[h, q_idx] + s[b, h] * (kv_idx - q_idx) * 0.1",
    "score * tanh(g[h, q_idx] + r[at[q_idx]])",
    // More of them than a block has memory for.
    "score * tanh(g[h, q_idx] + r[q_idx] + g[h, at[q_idx]] + r[at[q_idx]] + g[0, q_idx])",
};
constexpr const char* kMasks[] = {"", "\nmask_mod = q_idx >= kv_idx", "\nmask_mod = q_idx % 3 != 1",
                                  "\nmask_mod = kv_idx % 3 != q_idx % 5 and q_idx > 4"};

void check(Case one, Device device) {
    const auto seed = static_cast<std::uint32_t>(below(1 << 30));
    const int last = static_cast<int>(one.q_len) - 1;
    one.integers["at"] = [last](std::int64_t position) { return position * 7 % (last + 5) - 2; };
    // No gate may be divided by.
    one.reals["g"] = [](std::int64_t position) {
        return position % 5 == 0 ? 0.0 : static_cast<double>(position % 7) * 0.5 - 1;
    };
    CAPTURE(one.text);
    CAPTURE(one.q_len);
    CAPTURE(one.kv_len);
    CAPTURE(one.head_dim);
    CAPTURE(one.deterministic);
    CAPTURE(seed);
    CAPTURE(test::name(device));
    CAPTURE(std::string(flexc::name(one.dtype)));
    CHECK(test::run_case(one, device, seed) == "");
}

Case random_case(const char* score, int mask) {
    Case one = {.text = std::string(kBuffers) + score + kMasks[mask]};
    one.batch = 1 + below(2);
    one.kv_heads = 1 << below(3);
    one.q_len = 25 + below(60);
    one.kv_len = 1 + below(90);
    one.with_d_lse = below(3) != 0;
    return one;
}

// Kernels are the same on every run, so that they can be compiled before.
void check_on_hopper(const char* score, int turn) {
    for (const int head_dim : {64, 128}) {
        Case one = random_case(score, turn % 4);
        one.dtype = turn / 2 % 2 == 0 ? DType::bf16 : DType::f16;
        one.deterministic = (head_dim == 64) == (turn % 2 == 1);
        one.head_dim = head_dim;
        one.q_len += below(200);
        one.kv_len += below(200);
        one.with_d_lse = true;
        one.strided = below(2) == 0;
        one.padding = 8;
        one.f32_outputs = below(2) == 0;
        one.q_offset = below(3);
        one.kv_offset = below(3);
        check(one, Device::cuda(0));
    }
}

} // namespace

TEST_CASE("gradients of what is added to rows, and multiplies them") {
    for (const Device device : test::test_devices()) {
        for (const char* score : kSums)
            check(random_case(score, below(4)), device);
        for (const char* score : kProducts)
            check(random_case(score, below(4)), device);
    }
}

TEST_SUITE_BEGIN("hopper");

TEST_CASE("rows: sums from lse" * doctest::skip()) {
    int turn = 0;
    for (const char* score : kSums)
        check_on_hopper(score, turn++);
}

TEST_CASE("rows: what multiplies them" * doctest::skip()) {
    int turn = 0;
    for (const char* score : kProducts)
        check_on_hopper(score, turn++);
}

TEST_CASE("rows: beside other head dims, orders and tensors" * doctest::skip()) {
    for (const char* score : {kSums[1], kProducts[2]}) {
        Case one = random_case(score, score == kSums[1] ? 1 : 3);
        one.dtype = DType::bf16;
        one.with_d_lse = true;
        const auto with = [&](auto change) {
            Case other = one;
            change(other);
            check(other, Device::cuda(0));
        };
        for (const int head_dim : {40, 80, 192})
            with([&](Case& other) { other.head_dim = head_dim; });
        one.head_dim = 64;
        with([](Case& other) {
            other.deterministic = true;
            other.runs = 4;
        });
        with([](Case& other) { other.gradient_type = GradientType::buffer; });
        with([](Case& other) { other.strided = true; });
        with([](Case& other) { other.backward_kernel = BackwardKernel::split; });
    }
}

TEST_SUITE_END();
