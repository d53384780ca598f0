// What Hopper's forward leaves out: shrinking sums that stay, keys that a warpgroup does not see,
// and rows that there are not. Skipped unless asked for, because they need that GPU.

#include <doctest/doctest.h>

#include "api/hopper_check.h"
#include "api/random_choices.h"

using namespace flexc;
using flexc::test::below;
using flexc::test::Case;

namespace {

struct Kind {
    int head_dim;
    DType dtype;
};

} // namespace

TEST_SUITE_BEGIN("hopper");

// Keys come last first: maxima rise by less and by more than what leaves sums as they are.
TEST_CASE("maxima that rise from one tile of keys to the next" * doctest::skip()) {
    struct Rise {
        const char* text;
        float scale = 0;
    };
    const Rise rises[] = {{"score_mod = score - kv_idx * 0.02"},
                          {"score_mod = score - abs(kv_idx - 300) * (q_idx % 3) * 0.03"},
                          {"score_mod = score * (8 - kv_idx * 0.01)"},
                          {"score_mod = score - kv_idx // 64 * 1.3"},
                          {"score_mod = score", 1}}; // scores spread so far that some rise
    constexpr Kind kKinds[] = {{64, DType::bf16}, {128, DType::f16}, {256, DType::bf16}};
    for (const auto& [text, scale] : rises)
        for (const Kind& kind : kKinds) {
            Case one = {.text = text, .dtype = kind.dtype, .batch = 1, .heads = 2, .kv_heads = 1};
            one.scale = scale;
            one.q_len = 70;
            one.kv_len = 700;
            one.head_dim = kind.head_dim;
            test::check_on_hopper(one);
        }
}

TEST_CASE("warpgroups that see nothing of a tile's last keys" * doctest::skip()) {
    const char* masks[] = {"mask_mod = q_idx >= kv_idx", "mask_mod = 0 <= q_idx - kv_idx < 200",
                           "mask_mod = kv_idx < 150 or q_idx >= kv_idx + 100"};
    constexpr Kind kKinds[] = {{64, DType::bf16}, {96, DType::f16}, {256, DType::bf16}};
    for (const char* mask : masks)
        for (const Kind& kind : kKinds) {
            Case one = {.text = mask, .dtype = kind.dtype, .batch = 1, .heads = 4, .kv_heads = 2};
            one.q_len = 200 + below(700);
            one.kv_len = 200 + below(700);
            one.head_dim = kind.head_dim;
            one.q_offset = below(100);
            one.kv_offset = below(100);
            test::check_on_hopper(one);
        }
}

// Three warpgroups, or two at 128 columns, compute a tile, and each sees whether it has rows; where
// one of three would, two tiles share the rows.
TEST_CASE("tiles of queries with rows for some warpgroups alone" * doctest::skip()) {
    const std::pair<int, const char*> mods[] = {
        {64, "score_mod = score"},
        {128, "score_mod = score"},
        {80, "mask_mod = q_idx + 30 >= kv_idx"},
        {64, "mask_mod = q_idx % 5 != kv_idx % 3"},
        {80, "buffer s: bf16[B, H, Q_LEN, 9] grad\nbuffer t: bf16[H, Q_LEN, 64] grad\n"
             "score_mod = score + s[b, h, q_idx, kv_idx // 64] + t[h, q_idx, kv_idx % 64]"},
        {64, "buffer c: f32[KV_LEN] grad\nscore_mod = score + c[kv_idx]"},
    };
    for (const auto& [head_dim, text] : mods) {
        Case one = {.text = text, .dtype = DType::bf16, .kv_heads = 2};
        one.head_dim = one.head_dim_v = head_dim;
        for (const int q_len : {1, 64, 65, 128, 129, 192, 193, 256, 257, 385, 449}) {
            one.q_len = q_len;
            one.kv_len = 100 + below(150);
            test::check_on_hopper(one);
        }
        // More tiles than a GPU has multiprocessors.
        one.batch = 20;
        one.q_len = 194;
        test::check_on_hopper(one);
    }
}

TEST_SUITE_END();
