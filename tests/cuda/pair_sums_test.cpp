// Sums that backward_sm90.cu computes for some elements of a thread at once: the joint values of a
// warp's elements, run by threads of the host, against the interpreter.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "compile/kernels.h"
#include "cuda/emitted.h"
#include "cuda/kernel_gradients.h"
#include "d_scores.h"
#include "draws.h"
#include "host_arguments.h"
#include "host_module.h"
#include "passes/dense_bias.h"
#include "passes/distance_value.h"
#include "passes/gradient_sum.h"
#include "plan/arch/sm90/sm90.h"
#include "plan/plan.h"
#include "plan/target_program.h"
#include "random_data.h"
#include "random_program.h"
#include "sm90/arguments.h"
#include "term_program.h"

namespace {

using namespace flexc;

// values: of each element of a warp's 16 keys, [query][key][score, dense bias]; joint: [query][key]
// [score, d_score, the score of the element alone, partials]. tabulated: values of each of
// `distances` distances, of which the one in the middle is 0.
using Function = void(const std::uint64_t* words, const ::sm90::KernelArguments*, int head,
                      int tile_query, int first_key, const float* values, const float* tabulated,
                      int distances, float* joint);

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "sm90/backward_fragments.cuh"
#include "sm90/backward_elements.cuh"
#include "sm90/pair_sums.cuh"
using namespace sm90;
extern "C" void run(const unsigned long long* words, const KernelArguments* attention, int head,
                    int tile_query, int first_key, const float* values, const float* tabulated,
                    int distances, float* of_elements) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    run_warp([&](int lane) {
        const auto query = [&](int j) { return lane % 4 * 2 + query_of(j); };
        const auto key = [&](int k) { return lane / 4 + 8 * k; };
        const auto visit_element = [&](int j, int k, bool is_loaded, auto visit) {
            const int q = std::min(tile_query + query(j), attention->q_len - 1) +
                          attention->q_offset;
            const int kv = std::min(first_key + key(k), attention->kv_len - 1) +
                           attention->kv_offset;
            const mod::Row row = mod::at_row(arguments, place.launch, place.head, place.b, place.h,
                                             place.h_kv, q);
            const mod::Column column = mod::at_column(arguments, place.launch, place.head, place.b,
                                                      place.h, place.h_kv, kv);
            const float bias = values[2 * (query(j) * 16 + key(k)) + 1];
            visit(mod::At{arguments, place.launch, place.head, row, column, place.b, place.h,
                          place.h_kv, q, kv, q, kv, tabulated + distances / 2, distances, q - kv,
                          nullptr, is_loaded ? bias : 0});
        };
        const auto score = [&](int j, int k) { return values[2 * (query(j) * 16 + key(k))]; };
        const auto visit_pair = [&](int pair, bool is_loaded, auto visit) {
            for (int j = 2 * pair; j < 2 * pair + 2; ++j)
                for (int k = 0; k < 2; ++k)
                    visit_element(j, k, is_loaded, [&](const mod::At& at) { visit(k, j, at); });
        };
        SumsAtOnce sums;
        for (int pair = 0; pair < kQueries / 2; ++pair) {
            const mod::Row none{};
            const mod::Column nothing{};
            const mod::At of_head{arguments, place.launch, place.head, none, nothing, place.b,
                                  place.h, place.h_kv, 0, 0};
            sums.find(
                of_head, pair,
                [&](int one, auto visit) {
                    visit_pair(one, true, [&](int k, int j, const mod::At& at) {
                        visit(k, j, at, score(j, k));
                    });
                },
                [&](int one, auto visit) { visit_pair(one, false, visit); });
            visit_pair(pair, true, [&](int k, int j, const mod::At& at) {
                const mod::Joint joint = mod::joint(sums.given(at, k, j), score(j, k));
                float* const to = of_elements + (3 + mod::kGradients) * (query(j) * 16 + key(k));
                to[0] = joint.score;
                to[1] = joint.d_score;
                to[2] = mod::score(at, score(j, k)); // as references of rows are found
                for (int i = 0; i < mod::kGradients; ++i) to[3 + i] = joint.partial[i];
            });
        }
    });
}
)";

plan::KernelConfig backward_of(const passes::Mod& mod, DType dtype, int head_dim) {
    CompileOptions options;
    options.dtype = dtype;
    options.head_dim = options.head_dim_v = head_dim;
    const plan::TargetProgram program(mod, options, *plan::target_of("sm_90a"));
    return plan::candidates(program.request(plan::KernelKind::backward_fused)).front();
}

// Returns how many elements' sums are computed at once; 0 if nothing is checked.
int check(const std::string& text, int head_dim, std::mt19937& random) {
    CAPTURE(text);
    CAPTURE(head_dim);
    const auto below = test::draws_below(random);
    auto mod = test::lower_text(text, head_dim, head_dim, true);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
    const plan::KernelConfig config = backward_of(*mod, DType::f16, head_dim);
    // What a 2-D key index stages is not there.
    if (config.sum_elements == 0 || config.sums.key_width != 0) return 0;
    const test::HostModule module(std::string(kText),
                                  test::emitted(*mod, config, {.dtype = DType::f16}));
    const std::vector<passes::ReadGradient> gradients = cuda::gradients_of(*mod, config);
    for (int round = 0; round < 2; ++round) {
        const ::sm90::KernelArguments attention =
            test::random_attention(1 + below(150), 1 + below(200), random);
        ir::Environment at = test::environment_of(attention, head_dim);
        const test::RandomData data(mod->program, at, random);
        const test::HostArguments arguments(*mod, at);
        const test::TilePlace place = test::random_tile(attention, 64, 16, random);
        at.b = place.head / attention.heads;
        at.h = place.head % attention.heads;
        at.h_kv = at.h / (attention.heads / attention.kv_heads);
        const ir::NodeId bias = passes::dense_bias_of_score(*mod);
        const auto visit = [&](auto visit_element) {
            for (int row = 0; row < 64; ++row)
                for (int column = 0; column < 16; ++column) {
                    const int q = place.first_query + row, kv = place.first_key + column;
                    if (q >= attention.q_len || kv >= attention.kv_len) continue;
                    at.q_idx = q + attention.q_offset;
                    at.kv_idx = kv + attention.kv_offset;
                    visit_element(static_cast<std::size_t>(row * 16 + column));
                }
        };
        constexpr std::size_t kElements = 64 * 16;
        std::vector<float> values(2 * kElements);
        visit([&](std::size_t i) {
            values[2 * i] = static_cast<float>(test::random_real(random));
            if (bias != ir::kNoNode)
                values[2 * i + 1] = static_cast<float>(ir::evaluate_real(mod->program, bias, at));
        });
        constexpr int kDistances = 1001;
        std::vector<float> tabulated;
        ir::Environment of_distance = at;
        for (const ir::NodeId value : passes::distance_values(*mod))
            for (int i = 0; i < kDistances; ++i) {
                of_distance.q_idx = std::max(i - kDistances / 2, 0);
                of_distance.kv_idx = std::max(kDistances / 2 - i, 0);
                tabulated.push_back(
                    static_cast<float>(ir::evaluate_real(mod->program, value, of_distance)));
            }
        const std::size_t slots = 3 + gradients.size();
        std::vector<float> joint(kElements * slots);
        module.function<Function>("run")(arguments.words(), &attention, place.head,
                                         place.first_query, place.first_key, values.data(),
                                         tabulated.data(), kDistances, joint.data());
        int wrong = 0;
        visit([&](std::size_t i) {
            at.score = values[2 * i];
            // Rounding errors of up to 20 terms.
            const auto is_near = [&](ir::NodeId id, float found) {
                const double expected = ir::evaluate_real(mod->program, id, at);
                return std::abs(expected - found) <= 1e-4 * (1 + std::abs(expected));
            };
            const float* const found = &joint[slots * i];
            wrong += !is_near(mod->score, found[0]) || !is_near(mod->d_score, found[1]) ||
                     !is_near(mod->score, found[2]);
            for (std::size_t k = 0; k < gradients.size(); ++k)
                // Of sums over diagonals, elements compute nothing.
                wrong += passes::gradient_sum(*mod, gradients[k], config.sums) !=
                             passes::GradientSum::distance &&
                         !is_near(gradients[k].partial, found[3 + k]);
        });
        CHECK(wrong == 0);
    }
    return config.sum_elements;
}

} // namespace

TEST_CASE("joint values of sums for some elements at once are those of the mod") {
    constexpr int kPrograms = 14;
    const std::uint64_t seed = test::first_seed();
    CAPTURE(seed);
    test::Random programs(seed);
    std::mt19937 random(static_cast<std::mt19937::result_type>(seed));
    int checked = 0;
    for (int i = 0; i < kPrograms; ++i)
        checked += check(i % 3 == 2 ? test::term_program(programs)
                                    : test::sum_program(programs, "f32", i % 2 == 0 ? "" : " grad"),
                         i % 2 == 0 ? 64 : 128, random) != 0;
    CHECK(checked >= kPrograms / 3);
}

TEST_CASE("a backward's elements whose sums are computed at once are as many as have registers") {
    struct Decision {
        std::string score;
        int head_dim, elements;
    };
    const std::string buffers =
        "buffer w: f32[H, 32]\nbuffer u: f32[H, Q_LEN, 32]\nbuffer v: f32[H, KV_LEN, 32]\nbuffer "
        "x: f32[Q_LEN]\nbuffer y: f32[KV_LEN]\nbuffer n: f32[H, 32] grad\n";
    const std::string of_head = "sum(i in 0..32: w[h, i] * tanh(x[q_idx] * y[kv_idx] * w[0, i]))";
    const std::string low_rank = "sum(i in 0..32: u[h, q_idx, i] * v[h, kv_idx, i])";
    for (const Decision& one :
         {Decision{"score + " + of_head, 64, 16},
          {"score + " + of_head, 128, 8},
          {"score + " + of_head, 256, 16},
          {"score + " + low_rank, 64, 16},
          {"score + " + low_rank, 128, 8},
          // P is packed beside its product with the derivative.
          {"score * tanh(score) + " + low_rank, 128, 4},
          {"score + " + of_head + " + sum(i in 0..9: n[h, i] * x[q_idx])", 64, 16},
          // Written out, of a row, and too long.
          {"score + sum(i in 0..5: w[h, i] * x[q_idx] * y[kv_idx])", 64, 0},
          {"score + sum(i in 0..32: w[h, i] * tanh(w[0, i] * x[q_idx]))", 64, 0},
          {"score + sum(i in 0..32: w[h, i] * tan(w[0, i] * erf(x[q_idx] * "
           "y[kv_idx]) ** w[1, i]))",
           64, 0}}) {
        CAPTURE(one.score);
        CAPTURE(one.head_dim);
        auto mod = test::lower_text(buffers + "score_mod = " + one.score, one.head_dim,
                                    one.head_dim, true);
        REQUIRE(mod.has_value());
        CHECK(backward_of(*mod, DType::bf16, one.head_dim).sum_elements == one.elements);
    }
}
