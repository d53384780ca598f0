// Functions of several numbers of the query and several of the key on Hopper's kernels, which
// elements combine: distances of points and their like.
#include <doctest/doctest.h>

#include <string>

#include "api/hopper_check.h"
#include "api/random_choices.h"
#include "replaced.h"

using namespace flexc;
using flexc::test::Case;

namespace {

class RandomCases : public test::RandomChoices {
  public:
    using RandomChoices::RandomChoices;

    Case next() {
        const std::string place = one_of({"b, ", "b, h, ", "", "h, "});
        const std::string dims = place.empty()    ? ""
                                 : place == "b, " ? "B, "
                                 : place == "h, " ? "H, "
                                                  : "B, H, ";
        const std::string term =
            one_of({"(# - @) ** 2", "abs(# - @)", "# * @", "max(#, @) ** 2",
                    "(# - 0.5 * exp(@)) ** 2", "(# - (1.0 if kv_idx % 11 == 4 else @)) ** 2"});
        const std::string score =
            one_of({"score - s[h] * sqrt($)", "score - sqrt($)", "score - s[h] * $",
                    "score * exp(-sqrt($))", "score + s[h] * exp(-$)", "score / (1 + sqrt($))",
                    "score - log(1 + sqrt($))", "score + s[h] * rsqrt(1 + $)",
                    "score - 4 * tanh(sqrt($) / 4)", "score - s[h] * min(sqrt($), 2.5)"});
        numbers_ = 1 + below(10);
        std::string total;
        for (int i = 0; i < numbers_; ++i) {
            const std::string number = ", " + std::to_string(i) + "]";
            total +=
                (i == 0 ? "abs(" : " + ") +
                test::replaced(
                    test::replaced(term, "#", "x[" + place + "min(q_idx, KV_LEN - 1)" + number),
                    "@", "x[" + place + "kv_idx" + number);
        }
        Case one;
        one.text = "buffer x: " + one_of({"f32[", "f32[", "bf16["}) + dims +
                   "KV_LEN, 10]\nbuffer s: f32[H]" + one_of({"", " grad"}) +
                   "\nscore_mod = " + test::replaced(score, "$", total + ")") + "\n" +
                   one_of({"", "", "mask_mod = q_idx >= kv_idx - 40\n",
                           "mask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2\n"});
        test::draw_call(*this, one);
        return one;
    }
    int numbers() const { return numbers_; } // of the last case

  private:
    int numbers_ = 0;
};

} // namespace

TEST_SUITE_BEGIN("hopper");

TEST_CASE("numbers of queries and keys that elements combine: random members" * doctest::skip()) {
    constexpr int kMembers = 6;
    const std::uint32_t seed = test::seed_of_members();
    CAPTURE(seed);
    RandomCases cases(seed);
    for (int i = 0; i < kMembers; ++i) {
        const Case one = cases.next();
        // With many numbers, every tile of Hopper's forward may spill, most of all beside wide
        // heads and those between 64 and 128 columns.
        const bool has_few = cases.numbers() <= (one.head_dim % 64 == 0 ? 4 : 3);
        has_few && one.head_dim <= 128 ? test::check_on_hopper(one) : test::check_on_gpu(one);
    }
}

// Points that are equal, so near that squares of their distances are no normal numbers, and so far
// that these are infinite or that there are none.
TEST_CASE("distances of points: zero, tiny, infinite" * doctest::skip()) {
    for (const double size : {0.0, 1e-22, 1e-19, 1.0, 1e18, 1e25})
        for (const char* score :
             {"score - s[h] * sqrt(%)", "score * exp(-sqrt(%))", "score / (1 + sqrt(%))"}) {
            CAPTURE(size);
            const std::string text = test::replaced(
                score, "%",
                "(x[q_idx, 0] - x[kv_idx, 0]) ** 2 + (x[q_idx, 1] - x[kv_idx, 1]) ** 2");
            Case one = {.text = "buffer x: f32[KV_LEN, 2]\nbuffer s: f32[H]\nscore_mod = " + text,
                        .dtype = DType::bf16,
                        .q_len = 200,
                        .kv_len = 300,
                        .head_dim = 64};
            one.reals["x"] = [size](std::int64_t i) { return size * static_cast<double>(i % 13); };
            one.reals["s"] = [](std::int64_t h) { return h % 2 == 0 ? 0.5 : 1.0; };
            test::check_on_hopper(one);
        }
}

TEST_SUITE_END();
