// What Hopper's forward adds beside what elements read, with which accumulators start: addends of
// keys and slopes, which come with the products, and addends of rows. Random members of the class.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "api/hopper_check.h"
#include "api/random_choices.h"

using namespace flexc;
using flexc::test::Case;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// An image of so many columns, perhaps behind a class token.
std::string image(int width, bool has_token) {
    const std::string w = std::to_string(width);
    const auto of = [&](const std::string& q, const std::string& kv) {
        return "t[h, " + q + " // " + w + " - " + kv + " // " + w + " + 60, " + q + " % " + w +
               " - " + kv + " % " + w + " + " + std::to_string(width - 1) + "]";
    };
    if (!has_token) return of("q_idx", "kv_idx");
    return "(0.0 if q_idx == 0 or kv_idx == 0 else " + of("(q_idx - 1)", "(kv_idx - 1)") + ")";
}

class RandomCases : public test::RandomChoices {
  public:
    using RandomChoices::RandomChoices;

    Case next() {
        constexpr int kWidths[] = {8, 14, 16, 37, 64};
        const int width = kWidths[below(5)];
        const std::string element =
            below(2) == 0 ? image(width, below(2) == 0)
                          : one_of({"r[b, h, q_idx, clamp(q_idx - kv_idx, 0, 63)]",
                                    "r[b, h, q_idx, clamp(kv_idx - q_idx + 40, 0, 63)] * 0.5",
                                    "bias[h, q_idx, kv_idx]"});
        const std::string beside =
            one_of({" + c[b, kv_idx]", " + c[b, kv_idx] * a[h]", " + o[h, q_idx]",
                    " + c[b, kv_idx] - o[h, q_idx]", " + a[h] * (kv_idx - q_idx)",
                    " - abs(a[h]) * 0.1 * (q_idx - kv_idx) + o[h, q_idx]",
                    " + (c[b, kv_idx] if kv_idx % 7 != 3 else -inf)",
                    " + (o[h, q_idx] if q_idx % 5 != 3 else -inf)", " + o[h, q_idx] * kv_idx * 0.1",
                    " + c[b, kv_idx] + a[h] * (kv_idx - q_idx)"});
        Case one;
        one.text = "buffer t: f32[H, 121, " + std::to_string(2 * width - 1) +
                   "]\nbuffer c: " + one_of({"f32", "bf16", "f16"}) +
                   "[B, KV_LEN]\nbuffer o: f32[H, Q_LEN]\nbuffer a: f32[H]\n"
                   "buffer r: bf16[B, H, Q_LEN, 64]\nbuffer bias: bf16[H, Q_LEN, KV_LEN]\n"
                   "buffer k: i32[KV_LEN]\nscore_mod = score + " +
                   element + beside + "\n" +
                   one_of({"", "", "mask_mod = q_idx >= kv_idx\n",
                           "mask_mod = q_idx - kv_idx < 90 and kv_idx - q_idx < 50\n",
                           "mask_mod = k[kv_idx] != 3\n"});
        test::draw_call(*this, one);
        one.head_dim = below(2) == 0 ? 64 : 128;
        // Indices stay inside of the table.
        one.q_len = 1 + below(width * 50 < 400 ? width * 50 : 400);
        one.kv_len = 1 + below(width * 50 < 400 ? width * 50 : 400);
        one.q_offset = one.kv_offset = 0;
        one.backward = false;
        return one;
    }
};

// Heads of 300 keys and as many queries, of which some have a special addend.
Case special_case(const std::string& score, double special, int head_dim) {
    Case one = {.text = "buffer t: f32[H, 121, 31]\nbuffer c: f32[H, KV_LEN]\n"
                        "buffer o: f32[H, Q_LEN]\nbuffer a: f32[H]\nbuffer r: f32[H, Q_LEN, 64]\n"
                        "score_mod = score + " +
                        score,
                .dtype = DType::bf16};
    one.head_dim = head_dim;
    one.q_len = one.kv_len = 300;
    one.scale = 0.125;
    one.large_scores = true;
    one.backward = false;
    const auto addend = [=](std::int64_t i) {
        return i / 300 == 2 || i % 300 > 170 || i % 7 == 3 ? special
                                                           : static_cast<double>(i % 25) / 8;
    };
    one.reals["c"] = one.reals["o"] = addend;
    // Two finite addends stay finite beyond the largest float, where f32 arithmetic would hide.
    if (std::isfinite(special) && std::abs(special) > 0x1p127 &&
        score.find("c[") != std::string::npos)
        one.reals["o"] = [](std::int64_t i) { return static_cast<double>(i % 25) / 8; };
    return one;
}

} // namespace

TEST_SUITE_BEGIN("hopper");

TEST_CASE("beside what elements read: random members" * doctest::skip()) {
    test::check_members<RandomCases>(8, test::check_on_hopper);
}

TEST_CASE("beside what elements read: infinite or large addends" * doctest::skip()) {
    const std::string shift = "r[h, q_idx, clamp(q_idx - kv_idx, 0, 63)]";
    for (const std::string& score :
         {image(16, false) + " + c[h, kv_idx]", image(16, false) + " + o[h, q_idx]",
          shift + " + c[h, kv_idx]", shift + " + o[h, q_idx]",
          shift + " + c[h, kv_idx] + o[h, q_idx]"}) {
        const int head_dim = test::below(2) == 0 ? 64 : 128; // one compile for all addends
        for (const double special : {-kInfinity, -0x1.fffffep127, -1e30, -1e9, 1e10}) {
            CAPTURE(special);
            test::check_on_hopper(special_case(score, special, head_dim));
        }
    }
}

TEST_CASE("beside what elements read: slopes whose maxima rise" * doctest::skip()) {
    const std::string shift = "r[h, q_idx, clamp(q_idx - kv_idx, 0, 63)]";
    for (const double slope : {-2.0, -0.05, 0.05, 2.0})
        for (const std::string& element : {image(16, true), shift}) {
            CAPTURE(slope);
            Case one = special_case(element + " + a[h] * (kv_idx - q_idx)", 0, 64);
            one.large_scores = false;
            one.backward = false;
            one.kv_len = element == shift ? 900 : 300;
            one.reals["a"] = [=](std::int64_t) { return slope; };
            test::check_on_hopper(one);
        }
}

TEST_SUITE_END();
