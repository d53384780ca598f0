// What a fold kernel's text adds for the terms of sums that are functions of the distance, run on
// the host: a sum of dS over a diagonal times the factor of each term, against the derivative of
// each.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "cuda/emitted.h"
#include "distance_program.h"
#include "host_arguments.h"
#include "host_module.h"
#include "passes/gradient_sum.h"
#include "plan/arch/sm90/sm90.h"
#include "plan/plan.h"
#include "plan/target.h"
#include "program_of.h"
#include "random_program.h"
#include "support/text.h"

namespace {

using namespace flexc;

struct Position {
    int b, h, h_kv, q, kv;
    float d_score;
};
using Function = void(const std::uint64_t*, const Position*);

constexpr std::string_view kCaller = R"(
extern "C" void {0}(const unsigned long long* words, const Position* p) {{
    using namespace mod;
    const Arguments& arguments = *reinterpret_cast<const Arguments*>(words);
    const Launch launch = at_launch(arguments);
    const Head head = at_head(arguments, launch, p->b, p->h, p->h_kv);
    const Row row = at_row(arguments, launch, head, p->b, p->h, p->h_kv, p->q);
    const Column column = at_column(arguments, launch, head, p->b, p->h, p->h_kv, p->kv);
    const At at{{arguments, launch, head, row, column, p->b, p->h, p->h_kv, p->q, p->kv}};
    mod::TermGradients::visit(at, [&](auto* to, float factor, bool) {{
        if (to != nullptr) flexc_accumulate(to, p->d_score * factor);
    }});
}}
#undef mod
)";

bool near(double expected, double got) {
    return std::abs(expected - got) <= 1e-4 * (1 + std::abs(expected));
}

// Adds what each term of a gradient adds at a place.
void add_terms(const passes::Mod& mod, const passes::ReadGradient& gradient,
               const ir::Environment& at, std::vector<std::vector<double>>& sums) {
    std::vector<double>& of_buffer = sums[mod.program.graph[gradient.read].symbol];
    test::visit_terms(mod, gradient, at,
                      [&](std::size_t element, double partial) { of_buffer[element] += partial; });
}

void check(bool deterministic) {
    constexpr int kPrograms = 12, kPoints = 20;
    const std::uint64_t seed = test::first_seed();
    CAPTURE(seed);
    test::Random random(seed);
    std::vector<passes::Mod> mods;
    std::vector<std::string> texts;
    std::string all = "#include \"common/mod_prelude.cuh\"\n#include \"common/exact_sum.cuh\"\n"
                      "struct Position { int b, h, h_kv, q, kv; float d_score; };\n";
    while (mods.size() < kPrograms) {
        const std::string program = test::program_of_terms(random);
        passes::PipelineOptions options;
        options.deterministic = deterministic;
        passes::Mod mod = test::lowered(program, options);
        CAPTURE(program);
        REQUIRE_FALSE(passes::adds_terms_by_element(mod));
        REQUIRE(passes::sums_by(mod, passes::GradientSum::distance));
        plan::KernelConfig config;
        config.kind = plan::KernelKind::fold;
        config.family = plan::sm90::kName;
        std::string text = test::emitted(mod, config, {.dtype = DType::f16});
        text.replace(text.find("#pragma once"), 12, "");
        const std::string name = formatted("f{}", mods.size());
        all += formatted("#define mod mod_{}\n{}", name, text) +
               formatted(fmt::runtime(kCaller), name);
        mods.push_back(std::move(mod));
        texts.push_back(program);
    }
    const test::HostModule module(all);
    for (std::size_t i = 0; i < mods.size(); ++i) {
        CAPTURE(texts[i]);
        const passes::Mod& mod = mods[i];
        test::Instance instance(mod.program, seed + i);
        test::HostArguments arguments(mod, instance.environment());
        for (int point = 0; point < kPoints; ++point) {
            instance.move();
            const ir::Environment& at = instance.environment();
            const double d_score = ir::evaluate_real(mod.program, mod.d_score, at);
            const Position position{static_cast<int>(at.b),      static_cast<int>(at.h),
                                    static_cast<int>(at.h_kv),   static_cast<int>(at.q_idx),
                                    static_cast<int>(at.kv_idx), static_cast<float>(d_score)};
            arguments.clear_gradients();
            module.function<Function>(formatted("f{}", i))(arguments.words(), &position);
            std::vector<std::vector<double>> expected = arguments.empty_gradients();
            for (const passes::ReadGradient& gradient : mod.gradients)
                if (passes::is_of_terms_by_distance(mod, gradient))
                    add_terms(mod, gradient, at, expected);
            for (std::size_t buffer = 0; buffer < expected.size(); ++buffer)
                for (std::size_t j = 0; j < expected[buffer].size(); ++j)
                    CHECK_MESSAGE(near(expected[buffer][j], arguments.gradient(buffer, j)),
                                  mod.program.buffers[buffer].name, "[", j,
                                  "]: ", expected[buffer][j], " is not ",
                                  arguments.gradient(buffer, j));
        }
    }
}

} // namespace

TEST_CASE("a sum over a diagonal times the factors of terms is their gradient") { check(false); }

TEST_CASE("and so it is in exact sums") { check(true); }

TEST_CASE("such terms leave nothing to the main backward but sums over diagonals") {
    const std::string buffers = "buffer w: f32[H, 16] grad\nbuffer m: f32[16] grad\n";
    const std::string sum =
        "sum(i in 0..16: w[h, i] * relu(m[i] * log(1 + abs(q_idx - kv_idx)) - 1))";
    for (const bool deterministic : {false, true}) {
        CAPTURE(deterministic);
        const auto plan_of = [&](const std::string& score) {
            CompileOptions options;
            options.dtype = DType::bf16;
            options.head_dim = options.head_dim_v = 64;
            options.backward = true;
            options.deterministic = deterministic;
            passes::PipelineOptions lowering;
            lowering.deterministic = deterministic;
            plan::TargetProgram program(test::lowered(buffers + "score_mod = " + score, lowering),
                                        options, *plan::target_of("sm_90a"));
            const auto plan = plan::make_plan(program);
            REQUIRE(plan);
            const plan::Variant& usual = plan->backward.front();
            const plan::KernelConfig& main = usual.candidates.front();
            return std::pair(main, plan::pass_of(program, usual, main));
        };
        const auto [main, pass] = plan_of("score + " + sum);
        CHECK(main.kind == plan::KernelKind::backward_fused);
        CHECK(main.family == plan::sm90::kName);
        CHECK(std::ranges::count(pass.kernels, plan::KernelKind::fold, &plan::KernelConfig::kind) ==
              1);
        passes::PipelineOptions lowering;
        lowering.deterministic = deterministic;
        const passes::Mod mod = test::lowered(buffers + "score_mod = score + " + sum, lowering);
        const std::string text = test::emitted(mod, main, {.dtype = DType::bf16});
        CHECK(text.find("constexpr int kGradients = 0;") != std::string::npos);
        CHECK(text.find("kSumsDistances = true") != std::string::npos);
        CHECK(text.find("TermGradients") == std::string::npos);
        const auto [other, its_pass] =
            plan_of("score + " + sum + " + sum(i in 0..9: m[i] * kv_idx)");
        CHECK(other.storage.term_words == 2 * 16 + 9);
        CHECK(std::ranges::count(its_pass.kernels, plan::KernelKind::fold,
                                 &plan::KernelConfig::kind) == 0);
    }
}
