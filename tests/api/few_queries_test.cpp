// Few queries of dense tensors, whose keys blocks of a GPU divide: random members of that class.
#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>
#include <string>

#include "api/hopper_check.h"
#include "api/random_choices.h"

using namespace flexc;
using flexc::test::Case;

namespace {

class RandomCases : public test::RandomChoices {
  public:
    using RandomChoices::RandomChoices;

    // Of one part or many, of the warps of a block or a warpgroup, and some with one row too many.
    Case next() {
        Case one;
        one.text = "buffer c: f32[KV_LEN]\nbuffer r: f32[H, N]\nbuffer a: bf16[B, Q_LEN]\n"
                   "score_mod = " +
                   score() + "\n" + mask() + sink();
        one.dtype =
            std::initializer_list<DType>{DType::bf16, DType::f16, DType::f32}.begin()[below(3)];
        const int group = std::initializer_list<int>{1, 3, 4, 8, 64}.begin()[below(5)];
        one.kv_heads = 1 + below(group == 64 ? 1 : 3);
        one.heads = one.kv_heads * group;
        one.batch = 1 + below(4);
        one.q_len = 1 + below(std::min(64 / group + 1, 20));
        one.kv_len = 1 + below(below(3) == 0 ? 9000 : 1500);
        one.head_dim = std::initializer_list<int>{128, 64, 40, 96, 192, 256}.begin()[below(6)];
        if (below(4) == 0) one.head_dim_v = std::initializer_list<int>{64, 128}.begin()[below(2)];
        one.q_offset = below(2) * (one.kv_len - 1);
        one.kv_offset = below(3) == 0 ? below(90) : 0;
        one.scale = below(3) == 0 ? 0.25F : 0;
        one.max_scores = below(4) == 0;
        one.backward = below(4) == 0;
        one.dims = {{"N", 50}};
        one.strided = below(3) == 0;
        one.padding = below(2) == 0 ? 8 : 3;
        one.f32_outputs = below(4) == 0;
        return one;
    }

  private:
    std::string score() {
        return one_of({"score", "score + c[kv_idx]", "score + 0.01 * (h + 1) * (kv_idx - q_idx)",
                       "10 * tanh(score / 10)", "score + r[h, min(abs(q_idx - kv_idx), N - 1)]",
                       "score * (1 + a[b, q_idx])"});
    }
    std::string mask() {
        return one_of({"", "", "mask_mod = q_idx >= kv_idx\n",
                       "mask_mod = q_idx >= kv_idx and q_idx - kv_idx < 300\n",
                       "mask_mod = kv_idx < 700\n", "mask_mod = kv_idx % 5 != h % 3\n"});
    }
    std::string sink() { return one_of({"", "", "sink = r[h, 0]\n"}); }
};

} // namespace

TEST_CASE("few queries of dense tensors: random members on a GPU" * doctest::skip()) {
    test::check_members<RandomCases>(12, test::check_on_gpu);
}
