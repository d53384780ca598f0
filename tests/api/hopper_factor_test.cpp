// Scores that are multiplied in Hopper's forward by a number of their row or head, which is a
// factor of exponents: of either sign, zero, and beside what rows and keys add.
#include <doctest/doctest.h>

#include <limits>
#include <string>

#include "api/hopper_check.h"
#include "api/random_choices.h"

using namespace flexc;
using flexc::test::Case;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class RandomCases : public test::RandomChoices {
  public:
    using RandomChoices::RandomChoices;

    Case next() {
        const std::string factor = one_of({"f[h]", "g[h, q_idx]", "-f[h]", "(f[h] * 3 - 1)",
                                           "(0.0 if q_idx % 5 == 0 else g[h, q_idx])", "-0.7",
                                           "(f[h] if h % 2 == 0 else 0.0)"});
        const bool is_of_head = factor.find('q') == std::string::npos;
        Case one;
        one.text =
            "buffer f: f32[H]" + one_of({"", " grad"}) + "\nbuffer g: f32[H, Q_LEN]\n" +
            "buffer r: bf16[H, Q_LEN]\nbuffer c: f32[B, KV_LEN]\nbuffer k: i32[KV_LEN]\n" +
            "score_mod = score * " + factor +
            one_of({"", "", " + r[h, q_idx]", " + f[h]", " + (-inf if q_idx % 7 == 3 else 1.0)"}) +
            (is_of_head ? one_of({"", " + c[b, kv_idx]", " - 2 * c[b, kv_idx]"}) : "") + "\n" +
            one_of({"", "", "mask_mod = q_idx >= kv_idx - 40\n",
                    "mask_mod = q_idx - kv_idx >= 70\n",
                    "mask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2\n",
                    "mask_mod = k[kv_idx] != 3\n"});
        test::draw_call(*this, one);
        return one;
    }
};

} // namespace

TEST_SUITE_BEGIN("hopper");

TEST_CASE("factors of rows and heads: random members" * doctest::skip()) {
    test::check_members<RandomCases>(12, test::check_on_hopper);
}

TEST_CASE("factors of heads: zero, tiny and large" * doctest::skip()) {
    for (const double factor : {0.0, -0.0, 1e-30, -1e-6, -1.0, 40.0, -40.0})
        for (const char* rest : {"", " + c[kv_idx]\nmask_mod = q_idx >= kv_idx",
                                 "\nmask_mod = q_idx - kv_idx >= 70"}) {
            CAPTURE(factor);
            Case one = {.text = "buffer f: f32[H]\nbuffer c: f32[KV_LEN]\n"
                                "score_mod = score * f[h]" +
                                std::string(rest),
                        .dtype = DType::bf16,
                        .q_len = 200,
                        .kv_len = 300,
                        .head_dim = 64};
            one.reals["f"] = [factor](std::int64_t h) { return h % 2 == 0 ? factor : 1.0; };
            one.reals["c"] = [](std::int64_t i) {
                return i % 7 == 3 ? -kInfinity : static_cast<double>(i % 25) / 8;
            };
            test::check_on_hopper(one);
        }
}

TEST_SUITE_END();
