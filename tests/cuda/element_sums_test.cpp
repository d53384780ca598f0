// Sums that forward_sm90.cu computes for some elements of a thread at once: the logits of a warp,
// run by threads of the host, against the score mod of each element.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "compile/kernels.h"
#include "cuda/emit.h"
#include "d_scores.h"
#include "draws.h"
#include "fresh_seed.h"
#include "host_arguments.h"
#include "host_module.h"
#include "plan/arch/sm90/sm90.h"
#include "plan/plan.h"
#include "plan/target_program.h"
#include "random_data.h"
#include "random_program.h"
#include "replaced.h"
#include "sm90/arguments.h"
#include "tabulated_text.h"
#include "term_program.h"
#include "warp_logits.h"

namespace {

using namespace flexc;

// biases and scores: [16 rows][keys of a tile], the dense bias, and products that become logits as
// exponents.
using Function = void(const std::uint64_t* words, const ::sm90::KernelArguments*, int head,
                      int warp_row, int first_key, const float* biases, float* scores);

constexpr std::string_view kText = R"(
#include "sm90/forward_tables.cuh"
#include "sm90/logits.cuh"
constexpr unsigned kBiases = 1 << 16, kTables = 1 << 17;
void copy_biases(const float* biases) {
    if constexpr (kReadsBias)
        for (int row = 0; row < 16; ++row)
            for (int key = 0; key < mod::kKeyTile; ++key)
                store_shared_word(kBiases + bias_chunk_at(row, key / 4) + key % 4 * 4,
                                  __float_as_uint(*biases++));
}
extern "C" void run(const unsigned long long* words, const KernelArguments* attention, int head,
                    int warp_row, int first_key, const float* biases, float* scores_of_warp) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    visit_element(*attention, arguments, place, 0, 0, [&](const mod::At& at) {
        if (tables_have_room(at))
            for (int thread = 0; thread < kTableThreads; ++thread)
                copy_tables(at, true, 0, 0, kTables, 1 / attention->scale, thread);
    });
    copy_tabulated(*attention, head, warp_row / mod::kQueryTile * mod::kQueryTile, first_key);
    copy_biases(biases);
    first_of_tables = kTables;
    end_of_tables = sizeof memory_of_block;
    run_warp([&](int lane) {
        const SequenceLength length(*attention, place.b);
        Logits logits(*attention, arguments, place, length, warp_row, lane, kTables);
        const auto at = [&](int i) {
            const int row = lane / 4 + 8 * fragment_row(i);
            return row * mod::kKeyTile + lane % 4 * 2 + fragment_column(i);
        };
        Scores scores;
        for (int i = 0; i < kScores; ++i) scores[i] = scores_of_warp[at(i)];
        logits.find_hidden(first_key, false);
        logits.prepare(first_key);
        logits.find_tabulated(0, warp_row % mod::kQueryTile + lane / 4);
        if (Logits::kStartsWithBias) {
            Scores started;
            logits.start(started, kBiases, first_key);
            for (int i = 0; i < kScores; ++i) scores[i] += started[i];
        } else {
            logits.load_biases(kBiases);
        }
        logits.apply(scores, first_key);
        for (int i = 0; i < kScores; ++i)
            scores_of_warp[at(i)] =
                logits.exponent(scores[i] + logits.offset(fragment_row(i), 0)) + logits.lse_shift();
    });
}
)";

struct ForwardOf {
    plan::KernelConfig config;
    const passes::DecomposedMod& decomposed;

    explicit ForwardOf(const plan::TargetProgram& program)
        : config(plan::candidates(program.request(plan::KernelKind::forward)).front()),
          decomposed(program.decomposed(config.decomposition)) {}
};

// The dense bias of the elements of these products, as TMA copies it: 0 past the ends.
std::vector<float> biases_of(const passes::DecomposedMod& decomposed,
                             const ::sm90::KernelArguments& attention,
                             const test::WarpProducts& products, ir::Environment at) {
    std::vector<float> biases(products.values.size());
    if (decomposed.parts.bias_read == ir::kNoNode) return biases;
    at.b = products.head / attention.heads;
    at.h = products.head % attention.heads;
    for (std::size_t i = 0; i < biases.size(); ++i) {
        const int q = products.row + static_cast<int>(i) / products.key_tile;
        const int kv = products.first_key + static_cast<int>(i) % products.key_tile;
        if (q >= attention.q_len || kv >= attention.kv_len) continue;
        at.q_idx = q + attention.q_offset;
        at.kv_idx = kv + attention.kv_offset;
        biases[i] = static_cast<float>(
            ir::evaluate_real(decomposed.mod.program, decomposed.parts.bias_read, at));
    }
    return biases;
}

// Returns how many elements' sums are computed at once; 0 if nothing is checked.
int check(const std::string& text, int head_dim, std::mt19937& random) {
    CAPTURE(text);
    CAPTURE(head_dim);
    const auto below = test::draws_below(random);
    auto mod = test::lower_text(text, head_dim, head_dim, false);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
    CompileOptions options;
    options.dtype = below(2) == 0 ? DType::f16 : DType::bf16;
    options.head_dim = options.head_dim_v = head_dim;
    const plan::TargetProgram program(*mod, options, *plan::target_of("sm_90a"));
    const ForwardOf kernel(program);
    const plan::sm90::Forward* const forward = plan::sm90::forward_of(kernel.config);
    REQUIRE(forward != nullptr);
    // What is added for rows of a 2-D key index is computed elsewhere.
    if (kernel.config.sum_elements == 0 || forward->sizes.index_2d_rows != 0) return 0;
    REQUIRE_FALSE(forward->sizes.multiplies_key_addend);
    const test::HostModule module(std::string(test::kTabulatedText).append(kText),
                                  cuda::emit_mod(kernel.decomposed.mod, kernel.decomposed.parts,
                                                 kernel.config, {.dtype = options.dtype}));
    for (int round = 0; round < 3; ++round) {
        ::sm90::KernelArguments attention =
            test::random_attention(1 + below(200), 1 + below(200), random);
        ir::Environment at = test::environment_of(attention, head_dim);
        const test::RandomData data(mod->program, at, random);
        const test::HostArguments arguments(kernel.decomposed.mod, at);
        const test::TabulatedValues tabulated(module, arguments, attention);
        const test::WarpProducts products(attention, kernel.config.block.key_tile,
                                          forward->key_step, random);
        const std::vector<float> biases = biases_of(kernel.decomposed, attention, products, at);
        std::vector<float> logits = products.values;
        module.function<Function>("run")(arguments.words(), &attention, products.head, products.row,
                                         products.first_key, biases.data(), logits.data());
        // Rounding errors of up to 20 terms.
        constexpr double kTolerance = 1e-4;
        CHECK(products.count_wrong(logits, *mod, attention, at, kTolerance) == 0);
    }
    return kernel.config.sum_elements;
}

} // namespace

TEST_CASE("logits of sums for some elements at once are those of the mod") {
    constexpr int kPrograms = 14;
    const std::uint64_t seed = test::first_seed();
    CAPTURE(seed);
    test::Random programs(seed);
    std::mt19937 random(static_cast<std::mt19937::result_type>(seed));
    int checked = 0;
    for (int i = 0; i < kPrograms; ++i)
        checked += check(test::sum_program(programs, "f32"), i % 2 == 0 ? 64 : 128, random) != 0;
    CHECK(checked >= kPrograms / 3);
}

TEST_CASE("what enters the terms of sums comes from copied tiles, tables and tabulated values") {
    const std::string buffers =
        "buffer w: f32[H, 20]\nbuffer m: f32[20]\nbuffer d: f32[B, Q_LEN, "
        "KV_LEN]\nbuffer g: i32[Q_LEN]\nbuffer k: i32[B, KV_LEN]\nbuffer t: "
        "f32[H, 5, 5]\nbuffer s: f32[H, N, N]\nbuffer c: f32[KV_LEN]\n";
    const std::string sum = "sum(i in 0..16: w[h, i] * exp(-(X - m[i]) ** 2))";
    std::mt19937 random(test::fresh_seed());
    for (const std::string value :
         {"d[b, q_idx, kv_idx]", "t[h, g[q_idx], k[b, kv_idx]]", "s[h, g[q_idx], k[b, kv_idx]]",
          "(d[b, q_idx, kv_idx] * t[h, g[q_idx], k[b, kv_idx]])",
          "(log(1 + abs(q_idx - kv_idx)) * sqrt(1 + c[kv_idx] ** 2) + d[b, q_idx, kv_idx])"})
        for (const std::string score :
             {"score + F", "score * F", "score + F * X", "4 * tanh((score + F + c[kv_idx]) / 4)",
              "score + log(1 + abs(q_idx - kv_idx)) * F\nmask_mod = q_idx + 9 > kv_idx"})
            CHECK(check(buffers + "score_mod = " +
                            test::replaced(test::replaced(score, "F", sum), "X", value),
                        random() % 2 == 0 ? 64 : 128, random) != 0);
}

TEST_CASE("elements whose sums are computed at once are as many as have registers") {
    struct Decision {
        std::string score;
        int head_dim, elements;
    };
    const std::string buffers =
        "buffer w: f32[H, 32]\nbuffer u: f32[H, Q_LEN, 32]\nbuffer v: f32[H, KV_LEN, 32]\nbuffer "
        "x: f32[Q_LEN]\nbuffer y: f32[KV_LEN]\n";
    for (const Decision& one :
         {Decision{"score + sum(i in 0..32: w[h, i] * tanh(w[0, i] * x[q_idx] * y[kv_idx]))", 64,
                   16},
          {"score + sum(i in 0..32: w[h, i] * tanh(w[0, i] * x[q_idx] * y[kv_idx]))", 128, 16},
          {"score + sum(i in 0..32: u[h, q_idx, i] * v[h, kv_idx, i])", 64, 16},
          {"score + sum(i in 0..32: u[h, q_idx, i] * v[h, kv_idx, i])", 128, 8},
          // Of tiles of 80 keys, for what is read by each element.
          {"score + sum(i in 0..32: w[h, i] * tanh(x[q_idx] * y[kv_idx] + w[0, i] * x[kv_idx] * "
           "y[q_idx] + w[1, i] * y[(q_idx * kv_idx) % 7]))",
           128, 16},
          // Written out, of a row, of a distance or of a key, and too long.
          {"score + sum(i in 0..5: w[h, i] * tanh(w[0, i] * x[q_idx] * y[kv_idx]))", 64, 0},
          {"score + sum(i in 0..32: w[h, i] * tanh(w[0, i] * x[q_idx]))", 64, 0},
          {"score * 2 + sum(i in 0..32: w[h, i] * tanh(w[0, i] * abs(q_idx - kv_idx)))", 64, 0},
          {"score + sum(i in 0..32: w[h, i] * tanh(w[0, i] * y[kv_idx]))", 64, 0},
          {"score + sum(i in 0..32: w[h, i] * tan(w[0, i] * erf(x[q_idx] * y[kv_idx]) ** w[1, i]))",
           64, 0}}) {
        CAPTURE(one.score);
        CAPTURE(one.head_dim);
        auto mod = test::lower_text(buffers + "score_mod = " + one.score, one.head_dim,
                                    one.head_dim, false);
        REQUIRE(mod.has_value());
        CompileOptions options;
        options.dtype = DType::bf16;
        options.head_dim = options.head_dim_v = one.head_dim;
        const plan::TargetProgram program(std::move(*mod), options, *plan::target_of("sm_90a"));
        CHECK(ForwardOf(program).config.sum_elements == one.elements);
    }
}
