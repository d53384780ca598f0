// Dense biases and shifted reads whose indices a call's sizes and params keep inside of their
// buffers, in Hopper's kernels: random members of the class, and calls with indices outside.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "api/hopper_check.h"
#include "api/random_choices.h"

using namespace flexc;
using flexc::test::Case;

namespace {

class Calls : public test::RandomChoices {
  public:
    using RandomChoices::RandomChoices;

    Case next() {
        Case one = {.batch = 2};
        test::draw_call(*this, one);
        one.head_dim = std::initializer_list<int>{64, 128, 40, 96}.begin()[below(4)];
        one.kv_offset = 0;
        one.max_scores = false;
        if (below(2) == 0) one.kv_len = 8 * (1 + one.kv_len / 8); // rows of whole chunks
        const bool has_two = below(4) == 0;
        std::string score = "score" + read("t", one);
        if (has_two) score += read("u", one);
        if (below(4) == 0) score = "8 * tanh((" + score + ") / 8)";
        one.text += "score_mod = " + score + "\n";
        if (below(3) == 0)
            one.text += "mask_mod = " +
                        one_of({"q_idx >= kv_idx", "abs(q_idx - kv_idx) < 40",
                                "(q_idx // 40) % 2 == (kv_idx // 40) % 2"}) +
                        "\n";
        return one;
    }

  private:
    // Declares a buffer, and returns what is added for it.
    std::string read(const std::string& t, Case& one) {
        const std::int64_t queries = one.q_len + one.q_offset, keys = one.kv_len;
        std::string dims, index;
        const auto size = [&](std::int64_t extent) {
            const std::string name = t + "_" + std::to_string(one.dims.size());
            one.dims[name] = std::max<std::int64_t>(extent, 1);
            return name;
        };
        const auto param = [&](std::int64_t value) {
            const std::string name = t + "_p" + std::to_string(one.params.size());
            one.params[name] = static_cast<double>(value);
            one.text += "param " + name + ": int\n";
            return name;
        };
        const auto add = [&](const std::string& dim, const std::string& at) {
            dims += (dims.empty() ? "" : ", ") + dim;
            index += (index.empty() ? "" : ", ") + at;
        };
        const int less = below(6) == 0 ? 3 : 0; // of an extent: some index is outside
        if (below(3) == 0) add("B", "b");
        switch (below(5)) {
        case 0: add("H", "h"); break;
        case 1: add("H_KV", "h // (H // H_KV)"); break;
        case 2: {
            const std::string groups = size(1 + below(2));
            add(groups, "h // (H // " + groups + ")");
            break;
        }
        case 3: add(size(2 - less / 3), "h // 2"); break;
        default: break;
        }
        std::string row = "q_idx", rows = "Q_LEN";
        switch (below(4)) {
        case 0:
            row = "q_idx + KV_LEN - Q_LEN";
            rows = "KV_LEN";
            break;
        case 1: {
            const int offset = below(20);
            row = "q_idx + " + param(offset);
            rows = size(queries + offset - less);
            break;
        }
        case 2: rows = size(std::max(queries, keys) + 8 * below(3) - less); break;
        default: break;
        }
        switch (below(5)) {
        case 0:
        case 1:
            add(rows, row);
            add(rows == "Q_LEN" ? "KV_LEN" : size(keys + 8 * below(2)), "kv_idx");
            break;
        case 2:
            add("KV_LEN", "kv_idx");
            add(rows, row);
            break;
        case 3:
            add(rows, row);
            add(size(1 + below(500)),
                one_of({"kv_idx - q_idx", "q_idx - kv_idx"}) + " + " + std::to_string(below(200)));
            break;
        default: {
            const int reach = below(60);
            const std::string n = param(reach),
                              distance = one_of({"kv_idx - q_idx", "q_idx - kv_idx"});
            if (below(2) == 0)
                add(rows, row);
            else
                add("KV_LEN", "kv_idx");
            add(size(2 * reach + 1 - less),
                below(2) == 0 ? "clamp(" + distance + " + " + n + ", 0, 2 * " + n + ")"
                              : "clamp(" + distance + ", -" + n + ", " + n + ") + " + n);
        }
        }
        one.text += "buffer " + t + ": " + one_of({"bf16", "f16", "f32"}) + "[" + dims + "] grad\n";
        return one_of({" + ", " - 0.5 * "}) + t + "[" + index + "]";
    }
};

} // namespace

TEST_SUITE_BEGIN("hopper");

TEST_CASE("indices that calls keep inside: random members of the class" * doctest::skip()) {
    test::check_members<Calls>(30, [](const Case& one) { test::check_on_gpu(one); });
}

TEST_CASE("indices that calls keep inside: rows of masked and long programs" * doctest::skip()) {
    for (const int queries : {96, 200, 264})
        for (const std::string mask : {"", "mask_mod = q_idx + KV_LEN - Q_LEN >= kv_idx\n"}) {
            Case one = {.text = "buffer t: bf16[H, KV_LEN, KV_LEN] grad\n" + mask +
                                "score_mod = score + t[h, q_idx + KV_LEN - Q_LEN, kv_idx]",
                        .dtype = DType::bf16,
                        .q_len = queries,
                        .kv_len = 200,
                        .head_dim = 64};
            test::check_on_gpu(one);
        }
}

TEST_CASE("kinds of 64 bits, and choices under what multiplies dS" * doctest::skip()) {
    const std::string kinds =
        "buffer g: i64[B, KV_LEN]\nbuffer d: i32[B, Q_LEN, KV_LEN]\nbuffer tau: f32[H] grad\n";
    const std::string choice = "where(d[b, q_idx, kv_idx] < 3, t[h, d[b, q_idx, kv_idx]], 0.0)";
    const std::string texts[] = {
        "buffer t: f32[5, 5, H] grad\nscore_mod = score * tau[h] + t[g[b, q_idx], g[b, kv_idx], "
        "h]",
        "buffer t: f32[H, 4, 5] grad\nscore_mod = score * t[h, g[b, q_idx], g[b, kv_idx]]",
        "buffer t: f32[H, 4] grad\nscore_mod = score + " + choice + " * tau[h]",
        "buffer t: f32[H, 4] grad\nscore_mod = (score + " + choice + ") * (tau[h] + 2)",
        "buffer t: bf16[H, 4] grad\nscore_mod = 9 * tanh((score - " + choice + ") / 9)",
        "buffer t: f32[H, 33] grad\nscore_mod = 9 * tanh((score + where(q_idx == 0 or kv_idx == "
        "0, 0, t[h, clamp(d[b, q_idx, kv_idx] * 9 - 4, 0, 32)])) / 9)"};
    for (const std::string& text : texts)
        for (const int head_dim : {64, 128}) {
            std::string used;
            for (const char* buffer : {"g", "d", "tau"}) {
                const std::string declared = std::string("buffer ") + buffer + ":";
                const auto at = kinds.find(declared);
                if (text.find(std::string(buffer) + "[") != std::string::npos)
                    used += kinds.substr(at, kinds.find('\n', at) + 1 - at);
            }
            Case one = {.text = used + text, .dtype = DType::bf16, .head_dim = head_dim};
            one.q_len = 150 + test::below(100);
            one.kv_len = one.q_len + test::below(80);
            test::check_on_hopper(one);
        }
}

TEST_SUITE_END();
