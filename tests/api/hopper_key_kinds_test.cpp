// Kinds of keys, and of pairs, in Hopper's kernels: random members of the class, and programs at
// its ends.
#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "api/hopper_check.h"
#include "api/random_choices.h"

using namespace flexc;
using flexc::test::Case;

namespace {

class RandomCases : public test::RandomChoices {
  public:
    using RandomChoices::RandomChoices;

    // The table's dims in any order, some indices outside of it, and what else a program may have.
    Case next(bool learns) {
        // Half of them are more than kernels multiply by.
        const int kinds = 2 + below(below(2) == 0 ? 63 : 15), query_kinds = 1 + below(40);
        const bool by_head = below(2) == 0, by_batch = below(3) == 0, shares = below(3) == 0;
        const std::string query = shares ? "k[b, q_idx]" : "g[q_idx]";
        std::vector<std::pair<std::string, std::string>> dims = {
            {std::to_string(query_kinds), query + one_of({"", " - 1", " // 2"})},
            {std::to_string(kinds),
             one_of({"k[b, kv_idx]", "k[b, kv_idx] - 1", "kv_idx // 9 % 30"})}};
        if (by_head) dims.emplace_back("H", "h");
        if (by_batch) dims.emplace_back("B", "b");
        std::ranges::shuffle(dims, random_);
        std::string declared, index;
        for (const auto& [dim, at] : dims) {
            declared += (declared.empty() ? "" : ", ") + dim;
            index += (index.empty() ? "" : ", ") + at;
        }
        Case one;
        one.text = "buffer t: " + one_of({"f32", "bf16", "f16"}) + "[" + declared + "]" +
                   (learns ? " grad" : "") + "\nbuffer g: i32[Q_LEN]\nbuffer k: i32[B, 700]\n" +
                   "buffer a: f32[H]\nbuffer c: f32[KV_LEN]\nbuffer r: f32[H, 900]\n" +
                   "score_mod = score " + one_of({"+ ", "- ", "+ 0.5 * ", "+ a[h] * "}) + "t[" +
                   index + "]" +
                   one_of({"", "", " + c[kv_idx]", " + a[h] * (kv_idx - q_idx)",
                           " + r[h, min(abs(q_idx - kv_idx), 899)]"}) +
                   "\n" +
                   one_of({"", "mask_mod = q_idx >= kv_idx - 40\n",
                           "mask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2\n",
                           "mask_mod = k[b, kv_idx] != 3\n"});
        one.dtype = below(2) == 0 ? DType::bf16 : DType::f16;
        one.heads = 4;
        one.kv_heads = below(2) == 0 ? 4 : 2;
        one.q_len = 130 + below(150);
        one.kv_len = 140 + below(200);
        one.head_dim = std::initializer_list<int>{64, 128, 80, 192, 256}.begin()[below(5)];
        one.q_offset = below(2) * below(90);
        one.kv_offset = below(2) * below(90);
        one.with_d_lse = below(2) == 0;
        const int key_count = kinds + below(3), query_count = query_kinds + below(3);
        const int step = 1 + below(30);
        one.integers["k"] = [=](std::int64_t i) { return i * step % 101 % key_count; };
        one.integers["g"] = [=](std::int64_t i) { return i * step % 97 % query_count; };
        // Entries that are added apart, in some of the rows.
        if (below(3) == 0) {
            const int every = 3 + below(40);
            const double large = below(2) == 0 ? 60 : -100;
            one.reals["t"] = [=](std::int64_t i) {
                return i % every == 1 ? large : static_cast<double>(i * 7 % 33 - 16) / 16;
            };
        }
        return one;
    }
};

void check_random(bool learns) {
    constexpr int kMembers = 8;
    const std::uint32_t seed = test::seed_of_members();
    CAPTURE(seed);
    RandomCases cases(seed);
    for (int i = 0; i < kMembers; ++i)
        test::check_on_hopper(cases.next(learns));
}

Case of_text(const std::string& text, DType dtype, int head_dim) {
    Case one = {.text = "buffer k: i32[B, 400]\n" + text, .dtype = dtype};
    one.head_dim = head_dim;
    one.q_len = 200;
    one.kv_len = 300;
    one.integers["k"] = [](std::int64_t i) { return i * 7 % 11 % 5; };
    return one;
}

} // namespace

TEST_SUITE_BEGIN("hopper");

TEST_CASE("kinds of keys: random members" * doctest::skip()) { check_random(false); }

TEST_CASE("kinds of keys: random members whose tables learn" * doctest::skip()) {
    check_random(true);
}

TEST_CASE("kinds of keys: entries that are infinite or large" * doctest::skip()) {
    for (const double special : {-std::numeric_limits<double>::infinity(), -1e30, -20000.0, 1e4})
        for (const DType dtype : {DType::bf16, DType::f16})
            for (const int head_dim : {64, 128}) {
                CAPTURE(special);
                Case one = of_text("buffer t: f32[5, 5]\nscore_mod = score + t[k[b, q_idx], "
                                   "k[b, kv_idx]]",
                                   dtype, head_dim);
                one.scale = 0.125;
                one.large_scores = true;
                // A row of the table has nothing else.
                one.reals["t"] = [=](std::int64_t i) {
                    return i % 7 == 3 || i / 5 == 2 ? special : static_cast<double>(i) / 8;
                };
                test::check_on_hopper(one);
            }
}

TEST_CASE("kinds of keys: infinite or large entries of copies" * doctest::skip()) {
    for (const double special : {-std::numeric_limits<double>::infinity(), -1e30, -20000.0, 1e4})
        for (const int head_dim : {64, 128}) {
            CAPTURE(special);
            Case one = of_text("buffer t: f32[5, 32]\nscore_mod = score + t[k[b, q_idx], "
                               "k[b, kv_idx] * 7 - 3]",
                               DType::bf16, head_dim);
            one.scale = 0.125;
            one.large_scores = true;
            one.reals["t"] = [=](std::int64_t i) {
                return i % 7 == 3 || i / 32 == 2 ? special : static_cast<double>(i % 25) / 8;
            };
            test::check_on_hopper(one);
        }
}

TEST_CASE("kinds of keys: several tables, and one for each query" * doctest::skip()) {
    for (const int head_dim : {64, 128}) {
        test::check_on_hopper(of_text(
            "buffer t: f32[H, 5, 5] grad\nbuffer u: bf16[5, 7]\nscore_mod = score + t[h, k[b, "
            "q_idx], k[b, kv_idx]] - 0.5 * u[k[b, kv_idx], q_idx % 7]",
            DType::bf16, head_dim));
        test::check_on_hopper(of_text("buffer t: f16[Q_LEN, 12] grad\nscore_mod = score + t[q_idx, "
                                      "k[b, kv_idx] * 2]\nmask_mod = q_idx >= kv_idx",
                                      DType::f16, head_dim));
        test::check_on_hopper(of_text("buffer t: f32[8, 5]\nscore_mod = score + t[kv_idx // 40, "
                                      "k[b, q_idx]]",
                                      DType::bf16, head_dim));
    }
}

TEST_CASE("kinds of pairs: random members" * doctest::skip()) {
    constexpr int kMembers = 8;
    const std::uint32_t seed = test::seed_of_members();
    CAPTURE(seed);
    test::RandomChoices choices(seed);
    const auto below = [&](int n) { return choices.below(n); };
    for (int i = 0; i < kMembers; ++i) {
        const int kinds = 1 + below(below(2) == 0 ? 255 : 64);
        const std::string last = std::to_string(kinds - 1);
        Case one;
        const bool by_batch = below(3) != 0, is_turned = below(2) == 0;
        const std::string batch_dim = by_batch ? "B, " : "", b = by_batch ? "b, " : "";
        const std::string d = "d[" + b + (is_turned ? "kv_idx, q_idx]" : "q_idx, kv_idx]");
        one.text =
            "buffer d: " + choices.one_of({"i32", "i64", "u8", "i16"}) + "[" + batch_dim +
            (is_turned ? "KV_LEN, Q_LEN]" : "Q_LEN, KV_LEN]") +
            "\nbuffer t: " + choices.one_of({"f32", "bf16", "f16"}) + "[H, " +
            std::to_string(kinds) + "]" + choices.one_of({"", " grad"}) +
            "\nbuffer a: f32[H]\nbuffer c: f32[KV_LEN]\nbuffer r: f32[H, 900]\nscore_mod = score " +
            choices.one_of({"+ ", "- ", "+ 0.5 * ", "+ a[h] * "}) + "t[h, " +
            std::vector<std::string>{d, d + " - 1", "min(max(" + d + ", 0), " + last + ")",
                                     "where(q_idx == 0, 0, " + d + ")"}[below(4)] +
            "]" +
            choices.one_of({"", "", " + c[kv_idx]", " + a[h] * (kv_idx - q_idx)",
                            " + r[h, min(abs(q_idx - kv_idx), 899)]"}) +
            "\n" +
            choices.one_of({"", "mask_mod = q_idx >= kv_idx - 40\n",
                            "mask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2\n"});
        test::draw_call(choices, one);
        one.q_offset = one.kv_offset = 0;
        // Some are outside.
        const int step = 1 + below(30), count = std::min(kinds + below(3), 256);
        one.integers["d"] = [=](std::int64_t j) { return j * step % 257 % count; };
        test::check_on_hopper(one);
    }
}

TEST_SUITE_END();
