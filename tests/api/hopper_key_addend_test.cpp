// What is added by key in Hopper's forward, which comes with the products: random members of the
// class, and numbers that bf16 parts must hold.
#include <doctest/doctest.h>

#include <limits>
#include <string>

#include "api/hopper_check.h"
#include "api/random_choices.h"

using namespace flexc;
using flexc::test::Case;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLeastFloat = -0x1.fffffep127, kLeastNarrow = -0x1.fep127;

class RandomCases : public test::RandomChoices {
  public:
    using RandomChoices::RandomChoices;

    // What is added by key, of any heads and type, beside whatever else a program may have.
    Case next() {
        const std::string dims = one_of({"KV_LEN", "H, KV_LEN", "B, KV_LEN", "B, H, KV_LEN"});
        const std::string index = dims == "KV_LEN"      ? "kv_idx"
                                  : dims == "H, KV_LEN" ? "h, kv_idx"
                                  : dims == "B, KV_LEN" ? "b, kv_idx"
                                                        : "b, h, kv_idx";
        const std::string read = "c[" + index + "]";
        const std::string by_key = below(3) == 0 ? "(" + read + " if kv_idx % 7 != 3 else -inf)"
                                                 : one_of({"", "0.3 * ", "-", "a[h] * "}) + read;
        const std::string score =
            "score + " + by_key +
            one_of({"", "", "", " + r[q_idx]", " + a[h] * (kv_idx - q_idx)", " + a[h]",
                    " + t[h, min(abs(q_idx - kv_idx), 899)]", " + bias[h, q_idx, kv_idx]",
                    " + k[kv_idx] * 0.25 + log(1 + abs(q_idx * 2 - kv_idx)) * c[KV]"});
        Case one;
        one.text = "buffer c: " + one_of({"f32", "bf16", "f16"}) + "[" + dims + "]" +
                   one_of({"", " grad"}) +
                   "\nbuffer a: f32[H]\nbuffer r: f32[Q_LEN]\nbuffer t: f32[H, 900]\n"
                   "buffer k: i32[KV_LEN]\nbuffer bias: bf16[H, Q_LEN, KV_LEN]\nscore_mod = " +
                   (below(5) == 0 ? "9 * tanh((" + score + ") / 9)" : score) + "\n" +
                   one_of({"", "", "mask_mod = q_idx >= kv_idx - 40\n",
                           "mask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2\n",
                           "mask_mod = k[kv_idx] != 3\n"});
        for (std::size_t at; (at = one.text.find("c[KV]")) != std::string::npos;)
            one.text.replace(at, 5, read);
        test::draw_call(*this, one);
        return one;
    }

    // Sums of up to four products of a number of the row and one of the key.
    Case next_products() {
        const auto product = [&] {
            return one_of({" + r[b, q_idx] * c[h, kv_idx]", " - r[h, q_idx] * 0.5 * c[b, kv_idx]",
                           " + a[h] * c[h, kv_idx] * (r[h, q_idx] + 1)",
                           " + tanh(r[b, q_idx]) * log(1 + abs(c[h, kv_idx]))"});
        };
        std::string score = one_of({"score", "score", "score * 1.5"}) + product();
        for (int more = below(3); more > 0; --more)
            score += product();
        score += one_of({"", " + r[h, q_idx]", " + c[b, kv_idx]", " + a[h] + c[h, kv_idx]",
                         " + (c[h, kv_idx] if kv_idx % 7 != 3 else -inf)"});
        Case one;
        one.text =
            "buffer c: " + one_of({"f32", "bf16", "f16"}) + "[H, KV_LEN]" + one_of({"", " grad"}) +
            "\nbuffer a: f32[H]\nbuffer r: f32[H, Q_LEN]" + one_of({"", " grad"}) +
            "\nbuffer k: i32[KV_LEN]\nscore_mod = " + score + "\n" +
            one_of({"", "", "mask_mod = q_idx >= kv_idx - 40\n", "mask_mod = k[kv_idx] != 3\n"});
        test::draw_call(*this, one);
        one.backward = below(4) == 0;
        return one;
    }
};

Case of_text(const std::string& text, DType dtype, int head_dim) {
    Case one = {.text = "buffer c: f32[H, KV_LEN]\n" + text, .dtype = dtype};
    one.head_dim = head_dim;
    one.q_len = 200;
    one.kv_len = 300;
    return one;
}

} // namespace

TEST_SUITE_BEGIN("hopper");

TEST_CASE("addends of keys: random members" * doctest::skip()) {
    test::check_members<RandomCases>(12, test::check_on_hopper);
}

TEST_CASE("addends of keys: all of a float's bits" * doctest::skip()) {
    for (const DType dtype : {DType::bf16, DType::f16})
        for (const int head_dim : {64, 128}) {
            Case one = of_text("score_mod = score + c[h, kv_idx]", dtype, head_dim);
            one.scale = 0.125;
            // Scores that differ in the last bits of what is added: of 2^12 here, 2^-11.
            one.large_scores = true;
            one.reals["c"] = [](std::int64_t i) {
                return 4096 + static_cast<double>(i * 37 % 64 - 32) / 64;
            };
            test::check_on_hopper(one);
        }
}

TEST_CASE("addends of keys: infinite or large" * doctest::skip()) {
    for (const double special : {-kInfinity, kLeastFloat, kLeastNarrow, -1e30, 1e10, -20000.0, 1e4})
        for (const int head_dim : {64, 128})
            for (const char* mask : {"", "\nmask_mod = q_idx >= kv_idx - 9"}) {
                CAPTURE(special);
                Case one = of_text(std::string("score_mod = score + c[h, kv_idx]") + mask,
                                   head_dim == 64 ? DType::f16 : DType::bf16, head_dim);
                one.scale = 0.125;
                one.large_scores = true;
                // All keys of a head, and some of the others.
                one.reals["c"] = [=](std::int64_t i) {
                    return i / 300 == 2 || i % 300 > 170 || i % 7 == 3
                               ? special
                               : static_cast<double>(i % 25) / 8;
                };
                test::check_on_hopper(one);
            }
}

TEST_CASE("addends of keys: maxima that rise from tile to tile" * doctest::skip()) {
    for (const double step : {-2.0, -0.05, 0.05, 2.0})
        for (const int head_dim : {64, 128}) {
            CAPTURE(step);
            Case one = of_text("score_mod = score + c[h, kv_idx]", DType::bf16, head_dim);
            one.kv_len = 900;
            one.reals["c"] = [=](std::int64_t i) { return step * static_cast<double>(i % 900); };
            test::check_on_hopper(one);
        }
}

TEST_CASE("products of rows and keys: random members" * doctest::skip()) {
    constexpr int kMembers = 8;
    const std::uint32_t seed = test::seed_of_members();
    CAPTURE(seed);
    RandomCases cases(seed);
    for (int i = 0; i < kMembers; ++i)
        test::check_on_hopper(cases.next_products());
}

TEST_CASE("products of rows and keys: all of a float's bits" * doctest::skip()) {
    for (const int head_dim : {64, 128}) {
        Case one = of_text("buffer r: f32[Q_LEN]\nscore_mod = score + r[q_idx] * c[h, kv_idx]",
                           DType::bf16, head_dim);
        one.scale = 0.125;
        one.large_scores = true;
        one.backward = false;
        // Scores that differ in the last bits of what is added.
        one.reals["r"] = [](std::int64_t i) { return static_cast<double>(i % 3 + 1) * 1.25; };
        one.reals["c"] = [](std::int64_t i) {
            return 512 + static_cast<double>(i * 37 % 64 - 32) / 64;
        };
        test::check_on_hopper(one);
    }
}

TEST_CASE("products of rows and keys: infinite or large" * doctest::skip()) {
    for (const double special : {-kInfinity, kLeastNarrow, -1e30, 1e10})
        for (const int head_dim : {64, 128}) {
            CAPTURE(special);
            Case one = of_text("buffer r: f32[Q_LEN]\nscore_mod = score + r[q_idx] * c[h, kv_idx]",
                               DType::bf16, head_dim);
            one.scale = 0.125;
            one.large_scores = true;
            one.backward = false;
            one.reals["r"] = [](std::int64_t i) { return i % 4 == 0 ? 1.0 : 0.71875; };
            one.reals["c"] = [=](std::int64_t i) {
                return i / 300 == 2 || i % 300 > 170 || i % 7 == 3
                           ? special
                           : static_cast<double>(i % 25) / 8;
            };
            test::check_on_hopper(one);
        }
}

TEST_SUITE_END();
