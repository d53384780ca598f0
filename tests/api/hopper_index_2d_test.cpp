// Hopper's kernels where programs read by rows and columns of a grid of keys. Skipped unless asked
// for, because they need that GPU.

#include <doctest/doctest.h>

#include "api/hopper_check.h"
#include "api/random_choices.h"

using namespace flexc;
using flexc::test::below;
using flexc::test::Case;

TEST_SUITE_BEGIN("hopper");

// Most queries see several rows of the grid: where all that they see is one row, its gradient is 0,
// and what is left is how dS was rounded.
TEST_CASE("a 2-D key index" * doctest::skip()) {
    constexpr int kHeadDims[] = {64, 80, 128};
    const std::string masks[] = {"", "mask_mod = q_idx + 150 >= kv_idx",
                                 "mask_mod = abs(q_idx - kv_idx) < 200",
                                 "mask_mod = kv_idx % 3 != q_idx % 5"};
    for (const int width : {7, 10, 14, 14, 16, 48, 64, 64, 100}) {
        const std::string w = std::to_string(width), index = "[b, h, q_idx, kv_idx ";
        const std::string columns = below(2) == 0 ? w : "COLUMNS";
        Case one = {.text = "buffer rel_h: " + std::string(below(2) == 0 ? "f32" : "bf16") +
                            "[B, H, Q_LEN, ROWS] grad\nbuffer rel_w: f32[B, H, Q_LEN, " + columns +
                            "] grad\nbuffer r: f32[Q_LEN] grad\nbuffer c: f32[KV_LEN]\n" +
                            "score_mod = score + rel_h" + index + "// " + w + "] + rel_w" + index +
                            "% " + w + "]" + (below(2) == 0 ? " + r[q_idx] * c[kv_idx]\n" : "\n") +
                            masks[below(4)],
                    .dtype = below(2) == 0 ? DType::bf16 : DType::f16,
                    .batch = 2,
                    .heads = 4,
                    .kv_heads = below(2) == 0 ? 4 : 2};
        one.head_dim = kHeadDims[below(3)];
        // Rows past the end read 0.
        one.dims = {{"ROWS", 1 + below(8)}, {"COLUMNS", width}};
        for (int call = 0; call < 3; ++call) {
            one.q_len = 1 + below(300);
            one.kv_len = 2 * width + below(250);
            one.q_offset = below(3);
            // Keys that start inside a row take the generic kernels.
            one.kv_offset = call == 2 ? below(50) : width * below(3);
            one.strided = below(3) == 0;
            one.padding = 8;
            test::check_on_hopper(one);
        }
    }
}

// Rows of what is summed over a grid may be one piece of memory, pieces of their own, or neither.
TEST_CASE("a 2-D key index whose rows are whole in a tile" * doctest::skip()) {
    const std::pair<std::string, std::string> buffers[] = {
        {"B, H, Q_LEN, W", "b, h, q_idx, kv_idx % W"},
        {"H, Q_LEN, W", "h, q_idx, kv_idx % W"},
        {"B, H, Q_LEN, WIDER", "b, h, q_idx, kv_idx % W"},
        {"B, Q_LEN, H, W", "b, q_idx, h, kv_idx % W"},
        {"B, H, W, Q_LEN", "b, h, kv_idx % W, q_idx"},
        {"Q_LEN, W", "q_idx, order[kv_idx % W]"},
        {"B, H, Q_LEN, W", "b, h, q_idx // 3, kv_idx % W"},
    };
    constexpr std::pair<int, int> kForms[] = {{64, 80}, {64, 64}, {128, 80}, {32, 96}, {16, 64}};
    for (const auto& [width, head_dim] : kForms)
        for (const auto& [dims, index] : buffers) {
            const auto sized = [w = width](std::string text) {
                for (std::size_t at; (at = text.find('W')) != std::string::npos;)
                    text.replace(at, text.compare(at, 5, "WIDER") == 0 ? 5 : 1,
                                 std::to_string(text.compare(at, 5, "WIDER") == 0 ? w + 4 : w));
                return text;
            };
            Case one = {.text = sized("buffer order: i32[W]\nbuffer t: f32[" + dims +
                                      "] grad\nbuffer s: bf16[B, H, Q_LEN, 5] grad\n"
                                      "score_mod = score + t[" +
                                      index + "] - s[b, h, q_idx, kv_idx // W]"),
                        .dtype = DType::bf16,
                        .batch = 2,
                        .heads = 4,
                        .kv_heads = 2};
            // Its ends stay where they are.
            one.integers["order"] = [w = width](std::int64_t i) {
                return i % (w - 1) == 0 ? i : w - 1 - i;
            };
            one.q_len = 141;
            one.kv_len = 2 * width + 71;
            one.head_dim = head_dim;
            test::check_on_hopper(one);
        }
}

TEST_CASE("a 2-D key index, in other mods" * doctest::skip()) {
    const std::string tables = "buffer s: f32[B, H, Q_LEN, N] grad\n"
                               "buffer t: bf16[H, Q_LEN, M] grad\n";
    const std::string texts[] = {
        tables + "score_mod = 3 * tanh((score * 2 + s[b, h, q_idx, kv_idx // 32] - "
                 "t[h, q_idx, kv_idx % 32]) / 3)",
        tables + "score_mod = score + s[b, h, q_idx, kv_idx // 14] * 0.5 + (kv_idx - q_idx) * 0.01",
        tables + "score_mod = score - t[h, q_idx, kv_idx % 16] + abs(q_idx - kv_idx) * 0.01",
        tables + "score_mod = score + s[b, h, q_idx // 14, kv_idx // 28] - "
                 "t[h, q_idx % 14, kv_idx % 7]",
        tables + "score_mod = score + s[b, h, q_idx, kv_idx // 64] if q_idx != 20 else -inf",
        tables +
            "score_mod = score + (s[b, h, q_idx, kv_idx // 64] if (q_idx + kv_idx // 64) % 2 == 0 "
            "else -inf) + t[h, q_idx, kv_idx % 64]",
        "buffer t: f32[H, 27, 27] grad\n"
        "score_mod = score + t[h, q_idx // 14 - kv_idx // 14 + 13, q_idx % 14 - kv_idx % 14 + 13]",
        "buffer c: f32[H] grad\nscore_mod = score - c[h] * (abs(q_idx // 16 - kv_idx // 16) + "
        "abs(q_idx % 16 - kv_idx % 16)) * 0.1",
        "buffer g: f32[64] grad\n"
        "score_mod = score + (g[abs(q_idx // 14 - kv_idx // 14)] + "
        "g[abs(q_idx % 14 - kv_idx % 14)])",
    };
    for (const std::string& text : texts) {
        Case one = {.text = text, .dtype = DType::bf16, .batch = 2, .heads = 4, .kv_heads = 2};
        one.q_len = one.kv_len = 196;
        one.head_dim = 80;
        one.dims = {{"N", 15}, {"M", 32}};
        test::check_on_hopper(one);
        one.text += "\nmask_mod = q_idx + 60 >= kv_idx";
        one.dtype = DType::f16;
        one.q_len = 141;
        one.kv_len = 203;
        one.head_dim = 64;
        test::check_on_hopper(one);
    }
    // What is added for rows is divided by the scale, unless that is too small.
    for (const float scale : {0.4F, 1e-3F, 1e-7F}) {
        Case one = {.text = tables + "score_mod = score + s[b, h, q_idx, kv_idx // 64]",
                    .dtype = DType::bf16};
        one.q_len = one.kv_len = 196;
        one.head_dim = 64;
        one.dims = {{"N", 15}, {"M", 32}};
        one.scale = scale;
        test::check_on_hopper(one);
    }
}

TEST_CASE("rows of more keys than a tile has" * doctest::skip()) {
    const std::string tables = "buffer s: f32[B, H, Q_LEN, 6] grad\n"
                               "buffer t: bf16[H, 4, 6] grad\nscore_mod = ";
    for (const std::string keys : {"160", "200", "256", "512"})
        for (const int head_dim : {64, 128}) {
            const std::string texts[] = {
                "score + s[b, h, q_idx, kv_idx // " + keys + "]",
                "8 * tanh((score - 0.5 * s[b, h, q_idx, kv_idx // " + keys + "]) / 8)",
                "score + t[h, q_idx // 128, kv_idx // " + keys + "]",
                "score + s[b, h, q_idx, kv_idx // " + keys + "] + s[b, h, q_idx, kv_idx // 32 % 5]",
            };
            Case one = {.text = tables + texts[below(4)] +
                                (below(2) == 0 ? "" : "\nmask_mod = q_idx + 700 >= kv_idx"),
                        .dtype = below(2) == 0 ? DType::bf16 : DType::f16};
            one.head_dim = head_dim;
            one.q_len = 1 + below(300);
            one.kv_len = 600 + below(500);
            one.q_offset = below(3);
            test::check_on_hopper(one);
        }
}

TEST_SUITE_END();
