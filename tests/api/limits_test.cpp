// Limits that hold after the text has been read: each is a clear error.
#include <doctest/doctest.h>

#include <string>

#include "flexc/flexc.h"

using namespace flexc;

TEST_CASE("sums whose ranges are made of sizes have as few terms as others") {
    const auto plan = [](const std::string& text, std::int64_t kv_len) -> Result<Plan> {
        auto kernel = compile(text, {.dtype = DType::f32, .head_dim = 16, .device = Device::cpu()});
        REQUIRE_MESSAGE(kernel.has_value(), (kernel ? std::string() : kernel.error().message));
        return kernel->plan({.q_len = 3, .kv_len = kv_len});
    };
    const std::string powers = "score_mod = score + sum(i in 0..KV_LEN**9: sin(score * i))";
    const auto refused = plan(powers, 100);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == ErrorCode::limit);
    CHECK(refused.error().message ==
          "the sum over 0..KV_LEN ** 9 goes from 0 to 1000000000000000000 here; a sum has at most "
          "65536 terms: use a shorter range");
    CHECK(plan(powers, 3).has_value());
    const std::string of_keys = "score_mod = score + sum(i in 0..KV_LEN: sin(score * i))";
    CHECK(plan(of_keys, 65536).has_value());
    CHECK_FALSE(plan(of_keys, 65537).has_value());
    CHECK_FALSE(
        plan("mask_mod = sum(i in -1..KV_LEN - 1: (i + q_idx) % 3) > 5", 65537).has_value());
    const MaskTiles tiles{.queries = 64, .keys = 64};
    CHECK_FALSE(mask_map("mask_mod = sum(i in 0..KV_LEN * KV_LEN: i) > q_idx", {.head_dim = 16},
                         {.q_len = 3, .kv_len = 300}, {}, tiles)
                    .has_value());
}

TEST_CASE("a mask map ends at its limits, and when it is cancelled") {
    // No square leaves 2, which nothing but a look at every element tells.
    const char* text = "mask_mod = (q_idx * kv_idx) * (q_idx * kv_idx) % 3 != 2";
    const Sizes sizes{.q_len = 1 << 20, .kv_len = 1 << 20};
    for (const MaskTiles& tiles : {MaskTiles{}, MaskTiles{1 << 20, 1 << 20}}) {
        const auto late = mask_map(text, {.limits = {.seconds = 0.1}}, sizes, {}, tiles);
        REQUIRE_FALSE(late.has_value());
        CHECK(late.error().code == ErrorCode::limit);
        const auto cancel = CancelToken::create();
        cancel.cancel();
        const auto cancelled = mask_map(text, {.cancel = cancel}, sizes, {}, tiles);
        REQUIRE_FALSE(cancelled.has_value());
        CHECK(cancelled.error().code == ErrorCode::cancelled);
    }
    // The values that positions alone give take memory.
    const auto large = mask_map("mask_mod = q_idx * q_idx >= kv_idx * kv_idx",
                                {.limits = {.memory_bytes = 1 << 20}},
                                {.q_len = 1 << 22, .kv_len = 1 << 22}, {}, {1 << 22, 1 << 22});
    REQUIRE_FALSE(large.has_value());
    CHECK(large.error().code == ErrorCode::limit);
}

TEST_CASE("a derivative beyond the limit is an error with a place") {
    std::string text = "buffer t: f32[N] grad\nscore_mod {\n  s = score\n";
    for (int i = 0; i < 500; ++i)
        text += "  s = sin(s * t[kv_idx + " + std::to_string(i) + "])\n";
    const auto checked = check(text + "  s\n}", {.source_name = "deep.flex", .head_dim = 16});
    REQUIRE_FALSE(checked.has_value());
    CHECK(checked.error().code == ErrorCode::limit);
    CHECK(checked.error().message.starts_with("deep.flex:503:7: error: the derivative of this "
                                              "score_mod needs more than 32768 nodes"));
    CHECK(checked.error().message.find("hint: read grad buffers at fewer places") !=
          std::string::npos);
}
