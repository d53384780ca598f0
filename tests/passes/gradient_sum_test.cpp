#include <doctest/doctest.h>

#include "passes/gradient_sum.h"
#include "program_of.h"
#include "support/text.h"

using namespace flexc;
using passes::GradientSum;

namespace {

// Of the first read of a grad buffer.
GradientSum sum_of(const std::string& score) {
    const passes::Mod mod =
        test::lowered("buffer t: f32[H, N] grad\nbuffer at: i32[KV_LEN]\nscore_mod = " + score);
    REQUIRE(!mod.gradients.empty());
    return passes::gradient_sum(mod, mod.gradients[0]);
}

} // namespace

TEST_CASE("the sum of a gradient follows from what the read's indices use") {
    CHECK(sum_of("score + t[h, 0]") == GradientSum::head);
    CHECK(sum_of("score * t[h, b]") == GradientSum::head);
    CHECK(sum_of("score + t[h, q_idx // 2]") == GradientSum::query);
    CHECK(sum_of("score + t[h, at[kv_idx]]") == GradientSum::key);
    CHECK(sum_of("score + t[h, q_idx + kv_idx]") == GradientSum::element);
    CHECK(sum_of("score + t[h, int(score)]") == GradientSum::element);
}

TEST_CASE("positions may enter by their difference, whatever is done with it") {
    for (const char* index :
         {"q_idx - kv_idx", "kv_idx - q_idx + N // 2", "(q_idx + 3) - (kv_idx - KV_LEN)",
          "abs(q_idx - kv_idx)", "clamp(q_idx - kv_idx, 0, 7)", "int(log(max(q_idx - kv_idx, 1)))",
          "at[max(q_idx - kv_idx, 0)]", "q_idx + q_idx - kv_idx - kv_idx"}) {
        CAPTURE(index);
        CHECK(sum_of(formatted("score + t[h, {}]", index)) == GradientSum::distance);
    }
    for (const char* index : {"2 * q_idx - kv_idx", "q_idx - kv_idx // 2", "max(q_idx, kv_idx)",
                              "q_idx - kv_idx + at[kv_idx]", "q_idx * q_idx - kv_idx * kv_idx"}) {
        CAPTURE(index);
        CHECK(sum_of(formatted("score + t[h, {}]", index)) == GradientSum::element);
    }
}

TEST_CASE("a diagonal of dS is a read's gradient only where both have the same derivative") {
    CHECK(sum_of("3 * tanh((score + t[h, q_idx - kv_idx]) / 3)") == GradientSum::distance);
    CHECK(sum_of("score + 2 * t[h, q_idx - kv_idx]") == GradientSum::element);
    CHECK(sum_of("score * t[h, q_idx - kv_idx]") == GradientSum::element);
}

TEST_CASE("keys are taken as a grid where one is given") {
    const auto sum_by = [](const std::string& score, int key_width) {
        const passes::Mod mod = test::lowered("buffer t: f32[Q_LEN, N] grad\nscore_mod = " + score);
        REQUIRE(mod.gradients.size() == 1);
        return passes::gradient_sum(mod, mod.gradients[0], {.key_width = key_width});
    };
    CHECK(sum_by("score + t[q_idx, kv_idx // 12]", 12) == GradientSum::quotient);
    CHECK(sum_by("score + t[q_idx, kv_idx // 24 + h]", 12) == GradientSum::quotient);
    CHECK(sum_by("score + t[q_idx, kv_idx % 12]", 12) == GradientSum::remainder);
    CHECK(sum_by("score + t[q_idx, kv_idx % 12]", 0) == GradientSum::element);
    CHECK(sum_by("score + t[q_idx, kv_idx % 12]", 8) == GradientSum::element);
    CHECK(sum_by("score + 2 * t[q_idx, kv_idx % 12]", 12) == GradientSum::element);
    CHECK(sum_by("score + t[0, kv_idx % 12]", 12) == GradientSum::key);
    CHECK(sum_by("score + t[q_idx - kv_idx, 0]", 12) == GradientSum::distance);
}

TEST_CASE("the grid of keys is the one that most gradients fit") {
    const auto width_of = [](const std::string& score) {
        return passes::key_width_of_gradients(test::lowered(
            "buffer t: f32[Q_LEN, N] grad\nbuffer u: f32[Q_LEN, N]\nscore_mod = " + score));
    };
    CHECK(width_of("score + t[q_idx, kv_idx // 12] + t[q_idx, kv_idx % 12]") == 12);
    CHECK(width_of("score + t[q_idx, kv_idx // 5] + t[q_idx, kv_idx % 12] + "
                   "t[q_idx, kv_idx % 6]") == 12);
    CHECK(width_of("score + t[q_idx, kv_idx // 500]") == 0);
    CHECK(width_of("score + t[q_idx, kv_idx] + u[q_idx, kv_idx // 8]") == 0);
}

TEST_CASE("real reads of a distance are expanded, others are not") {
    const auto count = [](const std::string& score) {
        return passes::distance_reads(
                   test::lowered("buffer t: f32[N]\nbuffer i: i32[N]\nscore_mod = " + score))
            .size();
    };
    CHECK(count("score + t[q_idx - kv_idx] + t[abs(kv_idx - q_idx)]") == 2);
    CHECK(count("score + i[q_idx - kv_idx]") == 0);
    CHECK(count("score + t[q_idx] + t[kv_idx] + t[q_idx + kv_idx]") == 0);
    CHECK(count("score") == 0);
}
