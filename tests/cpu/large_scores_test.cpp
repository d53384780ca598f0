// Scores of any finite size against a softmax in float64 of the scores that f32 holds.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "harness.h"

using namespace flexc;
using namespace flexc::test;

namespace {

constexpr float kLeast = std::numeric_limits<float>::lowest();

// A score mod as text and as arithmetic in f32, with its derivative with respect to the score.
struct Case {
    const char* text;
    std::function<float(float score, int q, int kv)> score;
    std::function<double(int q, int kv)> slope;
    std::function<bool(int q, int kv)> visible = [](int, int) { return true; };
};

double one(int, int) { return 1; }

const std::vector<Case>& cases() {
    static const std::vector<Case> all = {
        {"score_mod = score + 1e10", [](float s, int, int) { return s + 1e10F; }, one},
        {"score_mod = score - 1e9", [](float s, int, int) { return s - 1e9F; }, one},
        {"score_mod = score + 3000.0", [](float s, int, int) { return s + 3000.0F; }, one},
        {"score_mod = score * 1e5", [](float s, int, int) { return s * 1e5F; },
         [](int, int) { return 1e5F; }},
        {"score_mod = score - 1e30 + 0.0", [](float s, int, int) { return s - 1e30F; }, one},
        {"score_mod = where(q_idx >= 1, score, -3.4028234663852886e38)",
         [](float s, int q, int) { return q >= 1 ? s : kLeast; },
         [](int q, int) { return q >= 1 ? 1.0 : 0.0; }},
        {"score_mod = where(kv_idx + 9 <= q_idx, score, -3.4028234663852886e38)",
         [](float s, int q, int kv) { return kv + 9 <= q ? s : kLeast; },
         [](int q, int kv) { return kv + 9 <= q ? 1.0 : 0.0; }},
        {"score_mod = score + (0.0 if kv_idx + 9 <= q_idx else -3.4028234663852886e38)",
         [](float s, int q, int kv) { return s + (kv + 9 <= q ? 0 : kLeast); }, one},
        {"score_mod = score + (0.0 if kv_idx + 9 <= q_idx else -65504.0)",
         [](float s, int q, int kv) { return s + (kv + 9 <= q ? 0.0F : -65504.0F); }, one},
        {"score_mod = score + (0.0 if q_idx >= 4 else -1e9)",
         [](float s, int q, int) { return s + (q >= 4 ? 0.0F : -1e9F); }, one},
        {"score_mod = score + 1e10 * (kv_idx % 3)",
         [](float s, int, int kv) { return s + 1e10F * static_cast<float>(kv % 3); }, one},
        {"score_mod = 3e38 if (kv_idx + q_idx) % 5 == 0 else -3e38",
         [](float, int q, int kv) { return (kv + q) % 5 == 0 ? 3e38F : -3e38F; },
         [](int, int) { return 0.0; }},
        {"score_mod = score - 1e12 if kv_idx < 290 else score\nmask_mod = kv_idx != 291 + q_idx",
         [](float s, int, int kv) { return kv < 290 ? s - 1e12F : s; }, one,
         [](int q, int kv) { return kv != 291 + q; }},
        {"score_mod = score + 1e10\nmask_mod = q_idx >= kv_idx",
         [](float s, int, int) { return s + 1e10F; }, one, [](int q, int kv) { return q >= kv; }},
        {"score_mod = score - 1e9 if q_idx % 2 == 0 else -inf\nmask_mod = q_idx >= kv_idx",
         [](float s, int q, int) {
             return q % 2 == 0 ? s - 1e9F : -std::numeric_limits<float>::infinity();
         },
         one, [](int q, int kv) { return q >= kv; }},
    };
    return all;
}

Problem shape_of(int q_len, int kv_len) {
    return {.batch = 2,
            .heads = 4,
            .kv_heads = 2,
            .q_len = q_len,
            .kv_len = kv_len,
            .head_dim = 16, // a scale of 1/4: scores before the mod are exact in f32
            .head_dim_v = 8};
}

// `lse_added`: the backward's weights are of a softmax over that much more.
Answer softmax_of(const Case& one_case, const Problem& p, double lse_added) {
    Answer answer;
    const auto dim = static_cast<std::size_t>(p.head_dim);
    const auto dim_v = static_cast<std::size_t>(p.head_dim_v);
    answer.o.assign(p.d_out.size(), 0);
    answer.dq.assign(p.q.size(), 0);
    answer.dk.assign(p.k.size(), 0);
    answer.dv.assign(p.v.size(), 0);
    for (std::int64_t head = 0; head < p.batch * p.heads; ++head)
        for (std::int64_t q = 0; q < p.q_len; ++q) {
            const std::int64_t kv_head =
                head / p.heads * p.kv_heads + head % p.heads / (p.heads / p.kv_heads);
            const auto row = static_cast<std::size_t>(head * p.q_len + q);
            auto key = [&](std::int64_t kv) {
                return static_cast<std::size_t>(kv_head * p.kv_len + kv);
            };
            std::vector<double> scores(static_cast<std::size_t>(p.kv_len),
                                       -std::numeric_limits<double>::infinity());
            double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
            for (std::int64_t kv = 0; kv < p.kv_len; ++kv) {
                const int i = static_cast<int>(q), j = static_cast<int>(kv);
                if (!one_case.visible(i, j)) continue;
                double product = 0;
                for (std::size_t d = 0; d < dim; ++d)
                    product += p.q[row * dim + d] * p.k[key(kv) * dim + d];
                double& score = scores[static_cast<std::size_t>(kv)];
                score = one_case.score(static_cast<float>(product * p.scale), i, j);
                maximum = std::max(maximum, score);
            }
            answer.lse.push_back(maximum);
            if (std::isinf(maximum)) continue;
            for (const double score : scores)
                sum += std::exp(score - maximum);
            answer.lse.back() += std::log(sum);
            for (std::size_t kv = 0; kv < scores.size(); ++kv)
                for (std::size_t d = 0; d < dim_v; ++d)
                    answer.o[row * dim_v + d] +=
                        std::exp(scores[kv] - maximum) / sum *
                        p.v[key(static_cast<std::int64_t>(kv)) * dim_v + d];
            double delta = 0;
            for (std::size_t d = 0; d < dim_v; ++d)
                delta += answer.o[row * dim_v + d] * p.d_out[row * dim_v + d];
            for (std::size_t kv = 0; kv < scores.size(); ++kv) {
                const std::size_t place = key(static_cast<std::int64_t>(kv));
                const double weight = std::exp(scores[kv] - maximum - lse_added) / sum;
                if (weight == 0) continue;
                double dp = 0;
                for (std::size_t d = 0; d < dim_v; ++d) {
                    dp += p.d_out[row * dim_v + d] * p.v[place * dim_v + d];
                    answer.dv[place * dim_v + d] += weight * p.d_out[row * dim_v + d];
                }
                const double d_product = weight * (dp - delta) * p.scale *
                                         one_case.slope(static_cast<int>(q), static_cast<int>(kv));
                for (std::size_t d = 0; d < dim; ++d) {
                    answer.dq[row * dim + d] += d_product * p.k[place * dim + d];
                    answer.dk[place * dim + d] += d_product * p.q[row * dim + d];
                }
            }
        }
    return answer;
}

} // namespace

TEST_CASE("scores of any finite size") {
    for (const Case& one_case : cases())
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
            CAPTURE(one_case.text);
            CAPTURE(name(dtype));
            RunOptions options{.dtype = dtype};
            const ir::Program program = program_of(one_case.text);
            const Problem sizes = make_problem(program, shape_of(70, 300), 11);
            const passes::Mod mod = mod_of(program, sizes, options);
            const auto executable = compile_for(mod, sizes, options);
            for (const auto& [q_len, kv_len] : {std::array{70, 300}, {1, 3}, {9, 40}})
                for (const unsigned flags : {0U, static_cast<unsigned>(kOutputF32)}) {
                    if (dtype == DType::f32 && flags != 0) continue;
                    options.output_flags = flags;
                    const Problem problem = make_problem(program, shape_of(q_len, kv_len), 11);
                    check_close(run(mod, *executable, problem, options),
                                softmax_of(one_case, problem, 0), options);
                }
        }
}

TEST_CASE("a large lse of more keys than a call has keeps its meaning") {
    for (const double added : {0.6931471805599453, 5.0})
        for (const char* text : {"score_mod = score + 3000.0", "score_mod = score + 30.0"}) {
            const float shift = std::string(text).find("3000") == std::string::npos ? 30 : 3000;
            const Case one_case{text, [=](float s, int, int) { return s + shift; }, one};
            // An lse of 3000 is known to 1.2e-4.
            const ir::Program program = program_of(text);
            const Problem problem = make_problem(program, shape_of(70, 300), 12);
            const Outcome outcome = run(program, problem, {.lse_added = added});
            const Answer expected = softmax_of(one_case, problem, added);
            for (std::size_t i = 0; i < expected.dv.size(); ++i)
                CHECK(outcome.answer.dv[i] == doctest::Approx(expected.dv[i]).epsilon(3e-4));
        }
}
