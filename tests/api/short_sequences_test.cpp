// Many short sequences, for which a GPU has kernels of their own: random members of that class.
#include <doctest/doctest.h>

#include <initializer_list>
#include <string>

#include "api/hopper_check.h"
#include "api/random_choices.h"

using namespace flexc;
using flexc::test::Case;

namespace {

class RandomCases : public test::RandomChoices {
  public:
    RandomCases(std::uint32_t seed, bool learned) : RandomChoices(seed), learned_(learned) {}

    // As many sequences as those kernels begin with, and some more. Batch entries of a head have a
    // value in common in some, in others each has its own.
    Case next() {
        Case one;
        one.text = buffers() + "score_mod = " + (learned_ ? learned_score() : score()) + "\n" +
                   one_of({"", "", "mask_mod = q_idx >= kv_idx\n", "mask_mod = k[b, kv_idx] != 3\n",
                           "mask_mod = q_idx // 5 == kv_idx // 5\n"});
        one.dtype =
            std::initializer_list<DType>{DType::bf16, DType::f16, DType::f32}.begin()[below(3)];
        one.kv_heads = 1 + below(3);
        // Some of the learned ones have heads that share keys, which other kernels take.
        one.heads = one.kv_heads * (learned_ && below(4) != 0 ? 1 : 1 + below(3));
        one.batch = 1024 / one.heads + 1 + below(60);
        const int most =
            std::initializer_list<int>{16, 32, 64, 96, 128, 144, 160, 197, 208, 256, 256, 512}
                .begin()[below(12)];
        // Of the longest, as many as fill most of their tiles.
        const int least = most == 512 ? 385 : most >= 197 && below(2) == 0 ? 129 : 1;
        one.q_len = below(3) == 0 ? most : least + below(most - least + 1);
        one.kv_len = below(3) == 0 ? most : 1 + below(most);
        one.head_dim = std::initializer_list<int>{32, 64, 64, 16, 40, 8, 80, 128}.begin()[below(8)];
        if (below(3) == 0) one.head_dim_v = std::initializer_list<int>{16, 64}.begin()[below(2)];
        one.q_offset = below(2) * below(9);
        one.kv_offset = below(2) * below(9);
        one.with_d_lse = below(2) == 0;
        one.strided = below(3) == 0;
        one.padding = below(2) == 0 ? 8 : 3;
        one.f32_outputs = below(4) == 0;
        one.deterministic = !learned_ && below(4) == 0;
        // What weights are relative to is found again for each row.
        if (!learned_ && below(4) == 0) make_large(one);
        return one;
    }

  private:
    void make_large(Case& one) {
        one.text = one_of({"score_mod = score + 9000", "score_mod = score + 1e10",
                           "score_mod = where(q_idx % 3 != 0, score, -1e30)",
                           "score_mod = score - 9000.0 * (q_idx % 2)\nmask_mod = q_idx >= kv_idx"});
        one.large_scores = true;
        one.scale = 0.125;
    }
    std::string buffers() {
        const std::string grad = learned_ ? " grad\n" : "\n";
        return "buffer t: f32[H, 15, 15]" + grad + "buffer r: f32[H, 200]" + grad +
               "buffer d: bf16[H, Q_LEN, KV_LEN]" + grad + "buffer a: f32[B, H]" + grad +
               "buffer c: f32[B, KV_LEN]\nbuffer k: i32[B, KV_LEN]\n";
    }
    std::string score() {
        return one_of({"score",
                       "score + t[h, q_idx // 8 - kv_idx // 8 + 7, q_idx % 8 - kv_idx % 8 + 7]",
                       "score + d[h, q_idx, kv_idx]", "score * (1 + a[b, h]) + c[b, kv_idx]",
                       "3 * tanh(score / 3) + r[h, abs(q_idx - kv_idx)]",
                       "score + a[b, h] * (kv_idx - q_idx)",
                       "score + where(q_idx == 0 or kv_idx == 0, 0.0, sin(q_idx * 0.3 - kv_idx))"});
    }
    // What blocks sum over sequences, and sums of a head beside it.
    std::string learned_score() {
        return one_of({"score + t[h, q_idx // 8 - kv_idx // 8 + 7, q_idx % 8 - kv_idx % 8 + 7]",
                       "score + d[h, q_idx, kv_idx]",
                       "3 * tanh(score / 3) + r[h, abs(q_idx - kv_idx)]",
                       "score + d[h, q_idx, kv_idx] + r[h, q_idx + 3]",
                       "score * (1 + r[h, abs(q_idx - kv_idx)])",
                       "score + a[b, h] * (kv_idx - q_idx) + r[h, kv_idx]"});
    }

    bool learned_;
};

} // namespace

TEST_CASE("many short sequences: random members on a GPU" * doctest::skip()) {
    test::check_members<RandomCases>(10, test::check_on_gpu, false);
}

TEST_CASE("many short sequences with gradients of buffers: random members on a GPU" *
          doctest::skip()) {
    test::check_members<RandomCases>(10, test::check_on_gpu, true);
}
