// Attention over masks of every tier, through the public API.
#include <cmath>

#include <doctest/doctest.h>

#include "api/case.h"
#include "masks.h"

using namespace flexc;

namespace {

test::Case case_of(const test::MaskCase& mask, DType dtype) {
    return {.text = mask.text,
            .dtype = dtype,
            .batch = 2,
            .heads = 2,
            .kv_heads = 1,
            .q_len = 150,
            .kv_len = 131,
            .dims = {{"N", 160}, {"M", 160}},
            .integers = mask.integers};
}

void check(const test::Case& one) {
    for (const Device device : test::test_devices()) {
        CAPTURE(test::name(device));
        CAPTURE(one.text);
        CHECK(test::run_case(one, device, 3) == "");
    }
}

void check_on_hopper(const test::Case& one) {
    CAPTURE(one.text);
    CAPTURE(one.head_dim);
    CHECK(test::run_case(one, Device::cuda(0), 7) == "");
}

// Every fourth mask, so that the cases of this file can run beside each other.
constexpr std::size_t kParts = 4;

// Rows and columns of tiles without anything visible among them, and heads that see different keys.
void check_walks(std::size_t part) {
    const std::vector<test::MaskCase> masks = test::mask_cases();
    for (std::size_t i = part; i < masks.size(); i += kParts) {
        // A constant needs no block mask, and a band of its own kind has been tested elsewhere.
        if (masks[i].tier <= analysis::MaskTier::closed_form) continue;
        test::Case one = case_of(masks[i], i % 2 == 0 ? DType::f16 : DType::bf16);
        one.backward_kernel = BackwardKernel::specialized;
        one.head_dim = i % 3 == 0 ? 128 : 64;
        one.heads = 4;
        one.kv_heads = 2;
        one.q_len = 300 + static_cast<std::int64_t>(i);
        one.kv_len = 470;
        one.dims = {{"N", 480}, {"M", 480}};
        one.q_offset = i % 4 == 0 ? 9 : 0;
        one.with_d_lse = i % 5 == 0;
        check_on_hopper(one);
    }
}

void check_forwards(std::size_t part) {
    const std::vector<test::MaskCase> masks = test::mask_cases();
    for (std::size_t i = part; i < masks.size(); i += kParts) {
        test::Case one = case_of(masks[i], i % 2 == 0 ? DType::bf16 : DType::f16);
        one.forward_kernel = ForwardKernel::specialized;
        one.head_dim = i % 3 == 0 ? 64 : 128;
        one.kv_len = 400;
        one.dims = {{"N", 400}, {"M", 400}};
        one.kv_offset = i % 5 == 0 ? 7 : 0;
        CAPTURE(one.text);
        CHECK(test::run_case(one, Device::cuda(0), 5) == "");
    }
}

} // namespace

TEST_CASE("masks that people use") {
    const std::vector<test::MaskCase> masks = test::mask_cases();
    // A compile for a GPU takes a second: they get them all, other machines some.
    const std::size_t step = default_device().kind == Device::Kind::cuda ? 1 : 6;
    for (std::size_t i = 0; i < masks.size(); i += step)
        check(case_of(masks[i], i % 2 == 0 ? DType::bf16 : DType::f32));
}

TEST_CASE("prefixes and padding by ranges on the CPU") {
    const std::vector<test::MaskCase> masks = test::clamped_cases();
    for (std::size_t i = 0; i < masks.size(); ++i) {
        test::Case one = case_of(masks[i], i % 2 == 0 ? DType::f32 : DType::bf16);
        one.q_len = 133 + static_cast<std::int64_t>(i);
        one.kv_len = 290 - static_cast<std::int64_t>(i);
        one.q_offset = i % 3 == 0 ? 11 : 0;
        one.kv_offset = i % 3 == 1 ? 5 : 0;
        CAPTURE(one.text);
        CHECK(test::run_case(one, Device::cpu(), 11) == "");
    }
}

TEST_CASE("which masks have no block mask on the CPU") {
    const auto block_mask_bytes = [](const char* mask, TileSource source) {
        auto kernel = compile(mask, {.dtype = DType::f32,
                                     .device = Device::cpu(),
                                     .backward = false,
                                     .tile_source = source});
        REQUIRE(kernel);
        auto plan = kernel->plan({.q_len = 700, .kv_len = 900});
        REQUIRE(plan);
        return plan->block_mask_bytes();
    };
    const char* prefix = "mask_mod = kv_idx < 100 or q_idx >= kv_idx";
    CHECK(block_mask_bytes(prefix, TileSource::automatic) == 0);
    CHECK(block_mask_bytes(prefix, TileSource::ranges) == 0);
    CHECK(block_mask_bytes(prefix, TileSource::block_mask) > 0);
    CHECK(block_mask_bytes("buffer n: i32[B]\nmask_mod = kv_idx < n[b]", TileSource::automatic) ==
          0);
    CHECK(block_mask_bytes("mask_mod = 0 <= q_idx - kv_idx < 90", TileSource::block_mask) == 0);
    CHECK(block_mask_bytes("mask_mod = q_idx // 9 == kv_idx // 9", TileSource::automatic) > 0);
}

TEST_CASE("a block mask with offsets, of each backward, and of a part of the queries") {
    const test::MaskCase documents{
        "buffer doc: i32[N]\nmask_mod = doc[q_idx] == doc[kv_idx] and q_idx >= kv_idx",
        analysis::MaskTier::tile_tests,
        {{"doc", test::document}}};
    test::Case one = case_of(documents, DType::bf16);
    one.q_offset = 7;
    one.kv_offset = 3;
    for (const BackwardKernel kernel : {BackwardKernel::fused, BackwardKernel::split}) {
        one.backward_kernel = kernel;
        check(one);
    }
    one.q_len = 1;
    check(one);
}

TEST_CASE("a plan follows its buffers when it is told to") {
    const std::string text = "buffer doc: i32[KV_LEN]\nmask_mod = doc[q_idx] == doc[kv_idx]";
    constexpr std::int64_t kLength = 300, kDim = 16;
    for (const Device device : test::test_devices()) {
        auto kernel = compile(
            text, {.dtype = DType::f32, .head_dim = kDim, .device = device, .backward = false});
        REQUIRE(kernel);
        const auto memory = [&](std::size_t bytes) {
            auto made = DeviceMemory::allocate(device, bytes);
            REQUIRE(made);
            return std::move(*made);
        };
        DeviceMemory q = memory(kLength * kDim * 4), o = memory(kLength * kDim * 4);
        DeviceMemory lse = memory(kLength * 4), doc = memory(kLength * 4);
        const auto tensor = [&](const DeviceMemory& of) {
            return TensorView::contiguous(of.data(), DType::f32, {1, 1, kLength, kDim});
        };
        const std::vector<NamedTensor> buffers = {
            {"doc", TensorView::contiguous(doc.data(), DType::i32, {kLength})}};
        // Scores are zero: the exponent of lse is how many keys a row sees.
        const auto seen = [&](const Plan& plan) {
            DeviceMemory workspace = memory(plan.workspace_bytes() + 1);
            const auto lse_view = TensorView::contiguous(lse.data(), DType::f32, {1, 1, kLength});
            REQUIRE(kernel->forward(plan, {tensor(q), tensor(q), tensor(q), tensor(o), lse_view},
                                    buffers, {workspace.data(), workspace.bytes()}));
            std::vector<float> rows(kLength);
            REQUIRE(lse.download(rows.data(), kLength * 4));
            return std::lround(std::exp(rows[10]));
        };
        const auto set_length = [&](int length) {
            std::vector<std::int32_t> documents(kLength);
            for (std::size_t i = 0; i < kLength; ++i)
                documents[i] = static_cast<std::int32_t>(i) / length;
            REQUIRE(doc.upload(documents.data(), kLength * 4));
        };
        const Sizes sizes{.q_len = kLength, .kv_len = kLength};
        set_length(20);
        auto plan = kernel->plan(sizes, buffers);
        REQUIRE(plan);
        CHECK(seen(*plan) == 20);
        set_length(200);
        REQUIRE(kernel->update(*plan, buffers));
        CHECK(seen(*plan) == 200);
        // Without the buffers there is nothing to plan with: each call looks for itself.
        auto later = kernel->plan(sizes);
        REQUIRE(later);
        CHECK(seen(*later) == 200);
        set_length(50);
        CHECK(seen(*later) == 50);
    }
}

TEST_SUITE_BEGIN("hopper");

TEST_CASE("Hopper's backward walks block masks, first quarter, on Hopper" * doctest::skip()) {
    check_walks(0);
}
TEST_CASE("masks that people use, first quarter, on Hopper" * doctest::skip()) {
    check_forwards(0);
}
TEST_CASE("Hopper's backward walks block masks, second quarter, on Hopper" * doctest::skip()) {
    check_walks(1);
}
TEST_CASE("masks that people use, second quarter, on Hopper" * doctest::skip()) {
    check_forwards(1);
}
TEST_CASE("Hopper's backward walks block masks, third quarter, on Hopper" * doctest::skip()) {
    check_walks(2);
}
TEST_CASE("masks that people use, third quarter, on Hopper" * doctest::skip()) {
    check_forwards(2);
}
TEST_CASE("Hopper's backward walks block masks, last quarter, on Hopper" * doctest::skip()) {
    check_walks(3);
}
TEST_CASE("masks that people use, last quarter, on Hopper" * doctest::skip()) { check_forwards(3); }

TEST_CASE("Hopper's backward walks block masks beside gradients of every class, on Hopper" *
          doctest::skip()) {
    const char* mask = "\nbuffer doc: i32[N]\nmask_mod = doc[q_idx] == doc[kv_idx] and "
                       "(q_idx >= kv_idx or h == 1)";
    for (const char* score :
         {"buffer s: f32[H] grad\nscore_mod = score + s[h] * (kv_idx - q_idx) * 0.1",
          "buffer c: f32[KV_LEN] grad\nscore_mod = score + c[kv_idx]",
          "buffer r: f32[Q_LEN] grad\nscore_mod = score + r[q_idx]",
          "buffer g: f32[Q_LEN] grad\nscore_mod = score * g[q_idx]",
          "buffer t: f32[17] grad\nscore_mod = score + t[min(abs(q_idx - kv_idx), 16)]",
          "buffer d: bf16[H, Q_LEN, KV_LEN] grad\nscore_mod = score + d[h, q_idx, kv_idx]",
          "score_mod = 3 * tanh(score / 3)"})
        for (const int head_dim : {64, 128}) {
            test::Case one = case_of({score + std::string(mask),
                                      analysis::MaskTier::tile_tests,
                                      {{"doc", test::document}}},
                                     DType::bf16);
            one.backward_kernel = BackwardKernel::specialized;
            one.head_dim = head_dim;
            one.heads = 4;
            one.kv_heads = 2;
            one.q_len = one.kv_len = 391;
            one.dims = {{"N", 391}};
            check_on_hopper(one);
        }
}

TEST_CASE("prefixes and padding by ranges, on Hopper" * doctest::skip()) {
    const std::vector<test::MaskCase> masks = test::clamped_cases();
    for (std::size_t i = 0; i < masks.size(); ++i)
        for (const int head_dim : {64, 128}) {
            test::Case one = case_of(masks[i], i % 2 == 0 ? DType::bf16 : DType::f16);
            one.tile_source = TileSource::ranges;
            one.head_dim = head_dim;
            one.q_len = 333;
            one.kv_len = 290 + static_cast<std::int64_t>(i);
            one.q_offset = i % 3 == 0 ? 11 : 0;
            one.kv_offset = i % 3 == 1 ? 5 : 0;
            check_on_hopper(one);
            // The kernels of other GPUs, and each of the split backward.
            one.forward_kernel = ForwardKernel::generic;
            one.backward_kernel = head_dim == 64 ? BackwardKernel::generic : BackwardKernel::split;
            check_on_hopper(one);
        }
}

TEST_SUITE_END();
