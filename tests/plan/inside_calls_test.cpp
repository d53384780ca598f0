// Variants of calls whose sizes and params keep indices inside of buffers.
#include <algorithm>
#include <ranges>
#include <string>

#include <doctest/doctest.h>

#include "plan/plan.h"
#include "program_of.h"

using namespace flexc;
using namespace flexc::plan;

namespace {

TargetProgram program_of(const std::string& text, const CompileOptions& options,
                         const char* arch = "sm_90a") {
    return {test::lowered(text, {.deterministic = options.deterministic,
                                 .head_dim = options.head_dim,
                                 .head_dim_v = options.head_dim_v}),
            options, *target_of(arch)};
}
CompileOptions options_of(int head_dim) {
    return {.dtype = DType::bf16, .head_dim = head_dim, .head_dim_v = head_dim, .backward = true};
}
bool is_of_inside_calls(const TargetProgram& program, const Variant& variant) {
    const PassPlan pass = pass_of(program, variant, variant.candidates.front());
    CHECK(pass.is_of_inside_calls == !program_of(variant, program).mod().inside_reads.empty());
    return pass.is_of_inside_calls;
}

constexpr const char* kAtTheEnd = "buffer t: bf16[H, KV_LEN, KV_LEN] grad\n"
                                  "score_mod = score + t[h, q_idx + KV_LEN - Q_LEN, kv_idx]\n";

} // namespace

TEST_CASE("calls that keep indices inside have the first variants, and others take any") {
    for (const std::string mask : {"", "mask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2\n"})
        for (const int head_dim : {64, 128}) {
            const TargetProgram program = program_of(kAtTheEnd + mask, options_of(head_dim));
            const auto plan = make_plan(program);
            REQUIRE(plan);
            for (const std::vector<Variant>* variants : {&plan->forward, &plan->backward}) {
                CHECK(variants->front().calls == Calls::usual);
                CHECK(is_of_inside_calls(program, variants->front()));
                CHECK((*variants)[1].calls == Calls::outside);
                for (const Variant& variant : *variants | std::views::drop(1)) {
                    CHECK_FALSE(is_of_inside_calls(program, variant));
                    // Plans have block masks of the first variant's tiles alone.
                    CHECK(
                        (is_by_size(variant.calls) || !variant.candidates.front().has_block_mask));
                }
                CHECK(variants->back().calls == Calls::any);
            }
            CHECK(plan->backward.front().candidates.front().sums.adds_bias_gradients);
            CHECK(plan->forward.front().candidates.front().kind == KernelKind::forward);
            CHECK(
                pass_of(program, plan->backward.front(), plan->backward.front().candidates.front())
                    .tiled_biases.size() != 0);
        }
}

TEST_CASE("other programs, and architectures, have no variants for such calls") {
    const auto has_variants = [](const TargetProgram& program) {
        const auto plan = make_plan(program);
        REQUIRE(plan);
        return std::ranges::any_of(plan->backward, [&](const Variant& variant) {
            return variant.calls == Calls::outside || is_of_inside_calls(program, variant);
        });
    };
    CHECK(has_variants(program_of(kAtTheEnd, options_of(64))));
    CHECK_FALSE(has_variants(program_of(kAtTheEnd, options_of(64), "sm_80")));
    CHECK_FALSE(has_variants(program_of("buffer t: bf16[H, Q_LEN, KV_LEN] grad\n"
                                        "score_mod = score + t[h, q_idx, kv_idx]",
                                        options_of(64))));
    CompileOptions generic = options_of(64);
    generic.backward_kernel = BackwardKernel::generic;
    CHECK_FALSE(has_variants(program_of(kAtTheEnd, generic)));
}
