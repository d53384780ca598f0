// P, dS and gradients of reads by head, query and key of a tile of the generic backward, and what
// elements add to tables instead of dS: a block run by threads of the host, against the program at
// each element.
#include <array>
#include <cmath>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "compile/kernels.h"
#include "cuda/emitted.h"
#include "d_scores.h"
#include "draws.h"
#include "fresh_seed.h"
#include "host_arguments.h"
#include "host_module.h"
#include "passes/gradient_sum.h"
#include "passes/table_gradient.h"
#include "passes/term_gradient.h"
#include "plan/plan.h"
#include "random_data.h"
#include "sm80/arguments.h"
#include "term_program.h"

namespace {

using namespace flexc;

// lse, delta: of each query of the tile. products and dp [queries][keys] become P and dS.
using Function = void(const std::uint64_t* words, const ::sm80::KernelArguments*, int head,
                      int first_query, int first_key, const float* lse, const float* delta,
                      float* products, float* dp, float* weighted);

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "sm80/backward_scores.cuh"
using namespace sm80;
using Scores = WarpResult<kScoreRows, mod::kKeyTile, mod::kWarps>;
constexpr unsigned kTerms = 8 * mod::kQueryTile; // behind lse and delta
template <typename Visit> void visit(Scores& scores, Visit visit_element) {
    for (int i = 0; i < Scores::kRows; ++i)
        for (int j = 0; j < 2 * Scores::kColumns; ++j)
            visit_element(scores.at(i, j / 2, j % 2),
                          Scores::row(i) * mod::kKeyTile + Scores::column(j / 2) + j % 2);
}
extern "C" void run(const unsigned long long* words, const KernelArguments* attention, int head,
                    int first_q, int first_kv, const float* lse, const float* delta,
                    float* products, float* dp, float* weighted) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    run_block(32 * mod::kWarps, [&] {
        const Surroundings around{*attention, arguments, place,
                                  SequenceLength(*attention, place.b)};
        for (int i = threadIdx.x; i < mod::kQueryTile; i += 32 * mod::kWarps) {
            store_shared_word(4 * i, __float_as_uint(lse[i]));
            store_shared_word(4 * (mod::kQueryTile + i), __float_as_uint(delta[i]));
        }
        __syncthreads();
        mod::GradientSums sums{};
        clear_terms<Scores>(around, kTerms);
        for (int row = 0; row < mod::kQueryTile; row += kScoreRows) {
            const int first = row * mod::kKeyTile;
            Scores p, d_scores;
            LaterGradients<Scores> later;
            visit(p, [&](float& element, int i) { element = products[first + i]; });
            visit(d_scores, [&](float& element, int i) { element = dp[first + i]; });
            differentiate_tile(p, d_scores, around,
                               {first_q + row, first_kv, 4u * row, 4 * mod::kQueryTile, false},
                               sums, later);
            sum_terms(later.terms, around, first_q + row, first_kv, kTerms);
            visit(p, [&](float& element, int i) { products[first + i] = element; });
            visit(d_scores, [&](float& element, int i) { dp[first + i] = element; });
            later.weighted.use([&](Scores elements) {
                visit(elements, [&](float& element, int i) { weighted[first + i] = element; });
            });
        }
        flush_terms<Scores>(around, first_kv, kTerms);
        mod::flush_gradients(arguments, place.launch, place.head, place.b, place.h, place.h_kv,
                             sums);
    });
}
)";

bool is_near(double is, double expected, double scale) {
    return std::abs(is - expected) <= 2e-5 * (scale + std::abs(expected));
}

// How many elements of gradients are not zero.
int check(const std::string& text, std::mt19937& random, bool deterministic = false) {
    CAPTURE(text);
    CAPTURE(deterministic);
    const auto below = test::draws_below(random);
    const int head_dim = below(2) == 0 ? 64 : 128;
    auto mod = test::lower_text(text, head_dim, head_dim, true, false, deterministic);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
    const bool keeps_terms = below(3) > 0;
    CAPTURE(keeps_terms);
    const auto terms = passes::terms_by_generic_tile(*mod);
    const std::vector<plan::KernelConfig> candidates = plan::candidates(
        {.kind = plan::KernelKind::backward_fused,
         .arch = std::array{80, 86, 90}[static_cast<std::size_t>(below(3))],
         .dtype = DType::bf16,
         .head_dim = head_dim,
         .head_dim_v = head_dim,
         .has_score_mod = true,
         .gradients = {.generic_term_reads = keeps_terms ? passes::count_term_reads(*mod, terms)
                                                         : passes::TermReads{},
                       .few_entries = passes::count_few_entries(*mod),
                       .weighs_entries = passes::weighs_entries(*mod)},
         .generic_because = "this test is of it"});
    const plan::KernelConfig& config =
        candidates[static_cast<std::size_t>(below(static_cast<int>(candidates.size())))];
    const test::HostModule module(
        std::string(kText),
        test::emitted(*mod, config,
                      {.dtype = DType::bf16, .head_dim = head_dim, .head_dim_v = head_dim}));

    ::sm80::KernelArguments attention{};
    static_cast<AttentionArguments&>(attention) =
        test::random_attention(30 + below(200), 30 + below(200), random);
    ir::Environment at = test::environment_of(attention, head_dim);
    const test::RandomData data(mod->program, at, random);
    test::HostArguments arguments(*mod, at);
    arguments.clear_gradients();
    const test::TilePlace place =
        test::random_tile(attention, config.block.query_tile, config.block.key_tile, random);

    const auto elements = static_cast<std::size_t>(place.queries) * place.keys;
    std::vector<float> lse, delta, products(elements), dp(elements), weighted(elements);
    for (int row = 0; row < place.queries; ++row) {
        lse.push_back(static_cast<float>(test::random_real(random)));
        delta.push_back(static_cast<float>(test::random_real(random)));
    }
    for (std::size_t i = 0; i < elements; ++i) {
        products[i] = static_cast<float>(test::random_real(random));
        dp[i] = static_cast<float>(test::random_real(random));
    }
    const std::vector<float> given_products = products, given_dp = dp;
    module.function<Function>("run")(arguments.words(), &attention, place.head, place.first_query,
                                     place.first_key, lse.data(), delta.data(), products.data(),
                                     dp.data(), weighted.data());

    at.b = place.head / attention.heads;
    at.h = place.head % attention.heads;
    at.h_kv = at.h / (attention.heads / attention.kv_heads);
    std::vector<std::vector<double>> gradients = arguments.empty_gradients(), sizes = gradients;
    int wrong = 0;
    for (std::size_t i = 0; i < elements; ++i) {
        const int row = static_cast<int>(i) / place.keys, column = static_cast<int>(i) % place.keys;
        const int q = place.first_query + row, key = place.first_key + column;
        at.q_idx = q + attention.q_offset;
        at.kv_idx = key + attention.kv_offset;
        at.score = static_cast<double>(given_products[i]) * attention.scale;
        const bool is_visible = q < attention.q_len && key < attention.kv_len &&
                                ir::evaluate_boolean(mod->program, mod->mask, at);
        double p = 0, d_modified = 0, d_score = 0;
        if (is_visible) {
            p = std::exp(ir::evaluate_real(mod->program, mod->score, at) - lse[row]);
            d_modified = p * (given_dp[i] - delta[row]);
            d_score = d_modified * ir::evaluate_real(mod->program, mod->d_score, at);
        }
        wrong += !is_near(products[i], p, 1) || !is_near(dp[i], d_score, 1);
        for (const passes::ReadGradient& gradient : mod->gradients) {
            // Those of tables are summed from tiles.
            if (gradient.entry_sum == passes::EntrySum::weighted) {
                const double term =
                    is_visible ? d_modified * ir::evaluate_real(mod->program, gradient.partial, at)
                               : 0;
                wrong += !is_near(weighted[i], term, 1);
            }
            if (!is_visible || gradient.entry_sum != passes::EntrySum::none) continue;
            const std::uint32_t buffer = mod->program.graph[gradient.read].symbol;
            test::visit_terms(*mod, gradient, at, [&](std::size_t entry, double partial) {
                gradients[buffer][entry] += partial * d_modified;
                // A partial may be a small difference of rounded numbers, as 1 - tanh(x) ** 2 is.
                sizes[buffer][entry] += (std::abs(partial) + 0.05) * std::abs(d_modified);
            });
        }
    }
    CHECK(wrong == 0);
    int wrong_gradients = 0, added = 0;
    for (std::size_t buffer = 0; buffer < gradients.size(); ++buffer)
        for (std::size_t i = 0; i < gradients[buffer].size(); ++i) {
            const double sum = arguments.gradient(buffer, i);
            wrong_gradients += !is_near(sum, gradients[buffer][i], sizes[buffer][i]);
            added += sum != 0;
        }
    CHECK(wrong_gradients == 0);
    return added;
}

} // namespace

TEST_CASE("the generic backward sums gradients of queries and keys along lines of a tile") {
    std::mt19937 random(test::fresh_seed());
    int added = 0;
    for (const char* const text :
         {"buffer g: f32[B, H, KV_LEN] grad\nbuffer r: f32[H, Q_LEN] grad\n"
          "score_mod = score * g[b, h, kv_idx] * r[h, q_idx]",
          // Elements beyond clamps, along queries or keys.
          "buffer r: f32[B, H, Q_LEN, 41] grad\n"
          "score_mod = score + r[b, h, q_idx, clamp(kv_idx - q_idx, -20, 20) + 20]",
          "buffer r: bf16[H, KV_LEN, 9] grad\nbuffer c: f32[H, Q_LEN] grad\n"
          "score_mod = score - 0.5 * r[h, kv_idx, min(max(q_idx - kv_idx, 0), 8)] + c[h, q_idx]\n"
          "mask_mod = q_idx >= kv_idx",
          "buffer r: f32[H, Q_LEN, 30] grad\nbuffer p: f32[KV_LEN, 7] grad\n"
          "score_mod = score + r[h, q_idx, min(abs(kv_idx - q_idx), 29)] + "
          "p[kv_idx, clamp(q_idx - kv_idx, 3, 3)]",
          "buffer g: f32[KV_LEN, 2] grad\nbuffer s: f32[H] grad\n"
          "score_mod = tanh(score * g[kv_idx, 1]) + s[h] * g[kv_idx, 0]\n"
          "mask_mod = q_idx + 20 >= kv_idx",
          // Some indices are outside, and several queries share one.
          "buffer at: i32[Q_LEN]\nbuffer r: bf16[3, H] grad\nbuffer m: f32[Q_LEN, KV_LEN] grad\n"
          "score_mod = score * r[at[q_idx], h] + m[q_idx, kv_idx]",
          "buffer r: f32[Q_LEN] grad\nscore_mod = score + r[q_idx] * kv_idx / 100\n"
          "mask_mod = q_idx % 3 != kv_idx % 5",
          // Elements add something of their own to a table, and to a read by distance.
          "buffer t: f32[H, 5, 5] grad\nbuffer r: f32[Q_LEN] grad\nbuffer k: i32[KV_LEN]\n"
          "score_mod = score * t[h, q_idx % 5, k[kv_idx]] + r[q_idx]",
          "buffer t: f32[H, 64] grad\nbuffer g: f32[B, H, Q_LEN] grad\n"
          "score_mod = score + g[b, h, q_idx] * t[h, min(abs(q_idx - kv_idx), 63)]\n"
          "mask_mod = q_idx + 60 >= kv_idx"})
        added += check(text, random);
    CHECK(added > 200);
}

TEST_CASE("the generic backward adds gradients of elements, after a tile or one by one") {
    std::mt19937 random(test::fresh_seed());
    int added = 0;
    for (const char* const text :
         {"buffer t: f32[H, Q_LEN, KV_LEN] grad\nscore_mod = score + t[h, q_idx, kv_idx]\n"
          "mask_mod = q_idx >= kv_idx",
          "buffer t: bf16[B, KV_LEN, Q_LEN] grad\nscore_mod = tanh(score * t[b, kv_idx, q_idx])",
          // Derivatives of hidden elements are infinite.
          "buffer t: f32[H, Q_LEN, KV_LEN] grad\n"
          "score_mod = score + t[h, q_idx, kv_idx] * log((q_idx + kv_idx) % 2 * 3)\n"
          "mask_mod = (q_idx + kv_idx) % 2 == 1",
          // Two places share a derivative, or do not.
          "buffer a: f32[Q_LEN, KV_LEN] grad\nbuffer c: f32[H, KV_LEN, Q_LEN] grad\n"
          "score_mod = score + a[q_idx, kv_idx] + c[h, kv_idx, q_idx]",
          "buffer a: f32[Q_LEN, KV_LEN] grad\nbuffer c: f32[H, KV_LEN, Q_LEN] grad\n"
          "score_mod = score * a[q_idx, kv_idx] + c[h, kv_idx, q_idx]",
          // Some are outside, or chosen by a condition.
          "buffer a: f32[90, 110] grad\nscore_mod = score + a[q_idx, kv_idx]",
          "buffer a: f32[Q_LEN, KV_LEN] grad\nbuffer r: f32[B, H, Q_LEN, 41] grad\n"
          "score_mod = score + (a[q_idx, kv_idx] if q_idx % 3 == 1 else 0.0) + "
          "r[b, h, q_idx, clamp(kv_idx - q_idx, -20, 20) + 20]"})
        added += check(text, random);
    CHECK(added > 1000);
}

TEST_CASE(
    "the generic backward sums gradients of terms over a tile, wherever their sums are kept") {
    const std::uint32_t seed = test::fresh_seed();
    test::Random random(seed);
    std::mt19937 data(seed);
    int added = 0;
    for (int i = 0; i < 10; ++i)
        added += check(test::term_program(random), data, i % 4 == 3);
    // Functions of the distance, and an index that uses the score.
    for (const char* const text :
         {"buffer w: f32[H, 9] grad\nbuffer m: f32[9] grad\n"
          "score_mod = score + sum(i in 0..9: w[h, i] * relu(m[i] * log(1 + abs(q_idx - kv_idx))))",
          "buffer w: f32[40, 9] grad\nbuffer m: f32[9] grad\n"
          "score_mod = score + sum(i in 0..9: m[i] * w[int(8 * score) % 40, i])",
          // Parts of hidden elements are infinite.
          "buffer w: f32[H, 9] grad\nbuffer v: f32[KV_LEN, 9] grad\n"
          "score_mod = score + 0.02 * sum(i in 0..9: w[h, i] * v[kv_idx, i] * log((q_idx - kv_idx) "
          "** 2))\n"
          "mask_mod = q_idx != kv_idx"})
        added += check(text, data);
    CHECK(added > 200);
}
