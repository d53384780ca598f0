// Which programs have several backward kernels that share the gradients of buffers, and the steps
// of a pass with them.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "program_of.h"
#include "support/text.h"

using namespace flexc;
using namespace flexc::plan;

namespace {

// Two tables by distance: warps of one kernel sum one tile.
constexpr const char* kTwoTables =
    "buffer s: f32[H, 61] grad\nbuffer t: bf16[H, 61] grad\n"
    "score_mod = score * s[h, min(abs(q_idx - kv_idx), 60)] + t[h, min(abs(q_idx - kv_idx), 60)]";

CompileOptions options_of(int head_dim) {
    return {.dtype = DType::bf16, .head_dim = head_dim, .head_dim_v = head_dim, .backward = true};
}

TargetProgram program_of(const std::string& text, const CompileOptions& options) {
    return {test::lowered(text, {.deterministic = options.deterministic,
                                 .divides_by_derivative = true,
                                 .head_dim = options.head_dim,
                                 .head_dim_v = options.head_dim_v}),
            options, *target_of("sm_90a")};
}

// Returns the number of kernels that share gradients, for the usual calls.
std::size_t count_kernels(const std::string& text, const CompileOptions& options) {
    const TargetProgram program = program_of(text, options);
    const auto plan = make_plan(program);
    REQUIRE(plan);
    for (const Variant& variant : plan->backward) {
        const bool may_share = variant.calls == Calls::usual ||
                               variant.calls == Calls::large_tables ||
                               variant.calls == Calls::unaligned_biases;
        CHECK((may_share || variant.further.empty()));
        for (const Variant& further : variant.further)
            for (const KernelConfig& config : further.candidates) {
                CHECK(config.gradients_are_alone);
                CHECK(config.family == "sm90");
            }
    }
    return 1 + plan->backward.front().further.size();
}

} // namespace

TEST_CASE("kernels that share gradients are Hopper's, of usual calls") {
    for (const int head_dim : {64, 128, 192})
        CHECK(count_kernels(kTwoTables, options_of(head_dim)) == 2);
    CHECK(count_kernels(kTwoTables, options_of(256)) == 1); // no room for its tiles
    const auto with = [](auto change) {
        CompileOptions options = options_of(64);
        change(options);
        return count_kernels(kTwoTables, options);
    };
    CHECK(with([](CompileOptions& o) { o.deterministic = true; }) == 1);
    CHECK(with([](CompileOptions& o) { o.dtype = DType::f32; }) == 1);
    CHECK(with([](CompileOptions& o) { o.backward_kernel = BackwardKernel::split; }) == 1);
    CHECK(with([](CompileOptions& o) { o.backward_kernel = BackwardKernel::generic; }) == 1);
    CHECK(with([](CompileOptions& o) { o.backward_kernel = BackwardKernel::specialized; }) == 2);
    CHECK(count_kernels("buffer t: f32[H, 61] grad\n"
                        "score_mod = score * t[h, min(abs(q_idx - kv_idx), 60)]",
                        options_of(64)) == 1);
}

TEST_CASE("tables of which elements compute entries have a kernel where the first has no room") {
    const auto text = [](int entries, const std::string& beside = "score") {
        return formatted("buffer e: i32[Q_LEN, KV_LEN]\nbuffer t: f32[H, {}] grad\n"
                         "buffer r: f32[H, 33] grad\nscore_mod = {} + t[h, e[q_idx, kv_idx]]",
                         entries, beside);
    };
    const std::string by_distance = "score + r[h, min(abs(q_idx - kv_idx), 32)]";
    CHECK(count_kernels(text(700), options_of(64)) == 1);
    CHECK(count_kernels(text(700), options_of(128)) == 1);
    CHECK(count_kernels(text(16000), options_of(64)) == 1);
    CHECK(count_kernels(text(16000), options_of(128)) == 2);
    CHECK(count_kernels(text(32000), options_of(128)) == 1); // one copy is too much
    CHECK(count_kernels(text(16000), options_of(192)) == 1);
    CHECK(count_kernels(text(16000), options_of(256)) == 1);
    // Other sums, which need registers.
    CHECK(count_kernels(text(700, by_distance), options_of(64)) == 2);
    CHECK(count_kernels(text(700, by_distance), options_of(192)) == 2);
    const auto with = [&](auto change) {
        CompileOptions options = options_of(64);
        change(options);
        return count_kernels(text(700, by_distance), options);
    };
    CHECK(with([](CompileOptions& o) { o.deterministic = true; }) == 1);
    CHECK(with([](CompileOptions& o) { o.backward_kernel = BackwardKernel::generic; }) == 1);
    CHECK(with([](CompileOptions& o) { o.backward_kernel = BackwardKernel::specialized; }) == 2);
}

TEST_CASE("tables whose extents a call binds have a kernel for what a block has room for") {
    // Of each variant: whose calls, kernels, and the most entries; - for any number.
    const auto variants = [](const std::string& text, const CompileOptions& options) {
        const TargetProgram program = program_of(text, options);
        const auto plan = make_plan(program);
        REQUIRE(plan);
        std::string found;
        for (const Variant& variant : plan->backward) {
            if (variant.calls == Calls::short_sequences || variant.calls == Calls::any) continue;
            PassPlan pass = pass_of(program, variant, variant.candidates.front());
            for (const Variant& further : variant.further)
                append(pass, pass_of(program, further, further.candidates.front()));
            REQUIRE(pass.bound_tables.size() <= 1);
            found += formatted(
                "{}{}:{}", variant.calls == Calls::usual ? "" : " ", 1 + variant.further.size(),
                pass.bound_tables.empty() ? "-"
                                          : std::to_string(pass.bound_tables[0].most_entries));
        }
        return found;
    };
    const std::string buffers =
        "buffer e: i32[Q_LEN, KV_LEN]\nbuffer t: f32[H, N] grad\n"
        "buffer r: f32[H, 33] grad\nbuffer m: bf16[H, Q_LEN, KV_LEN] grad\n";
    const std::string table = buffers + "score_mod = score + t[h, e[q_idx, kv_idx]]";
    CHECK(variants(table, options_of(64)) == "1:28499 2:40787 1:-");
    CHECK(variants(table, options_of(128)) == "1:8019 2:24403 1:-");
    CHECK(variants(table, options_of(192)) == "2:8019 1:-");
    CHECK(variants(table + "\nmask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2",
                   options_of(64)) == "1:28495 2:40783 1:-");
    // Other sums, which need registers; dense biases, whose rows may be unaligned.
    CHECK(variants(table + " + r[h, min(abs(q_idx - kv_idx), 32)]", options_of(128)) ==
          "2:24403 1:-");
    CHECK(variants(table + " + m[h, q_idx, kv_idx]", options_of(64)) == "2:40787 1:- 1:-");
    CompileOptions in_order = options_of(64);
    in_order.deterministic = true;
    CHECK(variants(table, in_order) == "1:-");
    // Extents that the program's text has are no condition, nor are other sums of tables.
    CHECK(variants("buffer e: i32[Q_LEN, KV_LEN]\nbuffer t: f32[H, 50] grad\n"
                   "score_mod = score + t[h, e[q_idx, kv_idx]]",
                   options_of(64)) == "1:-");
    CHECK(variants("buffer g: i32[Q_LEN]\nbuffer t: f32[N, 40] grad\n"
                   "score_mod = score + t[g[q_idx], g[kv_idx % Q_LEN]]",
                   options_of(64)) == "1:-");
}

TEST_CASE("the entries of tables are those of the text and of a call") {
    const auto tables = [](const std::string& text) {
        const TargetProgram program = program_of(text, options_of(64));
        const auto plan = make_plan(program);
        REQUIRE(plan);
        const Variant& first = plan->backward.front();
        return pass_of(program, first, first.candidates.front()).bound_tables;
    };
    const auto all = tables("buffer t: f32[3, N, H] grad\nbuffer u: f32[20] grad\n"
                            "score_mod = score + t[q_idx * kv_idx % 3, (q_idx + 2 * kv_idx) % N, h]"
                            " + u[q_idx * kv_idx % 20]");
    REQUIRE(all.size() == 1);
    REQUIRE(all[0].tables.size() == 2);
    CHECK(all[0].tables[0].known == 3);
    CHECK(all[0].tables[0].bound.size() == 1);
    CHECK(all[0].tables[1].known == 20);
    CHECK(all[0].tables[1].bound.empty());
    // As many entries as queries and keys are too many.
    CHECK(tables("buffer t: f32[Q_LEN, KV_LEN] grad\n"
                 "score_mod = score + t[q_idx * kv_idx % 30, q_idx * kv_idx % 40]")
              .empty());
    CHECK(tables("buffer t: f32[KV_LEN] grad\nscore_mod = score + t[q_idx * kv_idx % 40]").size() ==
          1);
}

TEST_CASE("a pass of several kernels finds statistics once and rounds gradients last") {
    CompileOptions options = options_of(64);
    options.gradient_type = GradientType::buffer;
    const TargetProgram program = program_of(kTwoTables, options);
    const auto plan = make_plan(program);
    REQUIRE(plan);
    const Variant& first = plan->backward.front();
    PassPlan pass = pass_of(program, first, first.candidates.front());
    REQUIRE(first.further.size() == 1);
    append(pass, pass_of(program, first.further[0], first.further[0].candidates.front()));
    std::vector<std::string_view> launched;
    for (const Step& step : pass.steps) {
        if (const auto* launch = std::get_if<Launch>(&step)) {
            REQUIRE(launch->kernel < pass.kernels.size());
            launched.push_back(launch->entry);
            for (const Region& region : launch->reads)
                CHECK(std::ranges::count(pass.workspace, region, &WorkspaceRegion::region) == 1);
        }
    }
    const std::vector<std::string_view> expected = {
        "flexc_backward_tabulate_sm90", "flexc_backward_references",   "flexc_backward_delta_sm90",
        "flexc_backward_sm90",          "flexc_backward_convert_sm90", "flexc_backward_fold_sm90",
        "flexc_backward_tabulate_sm90", "flexc_backward_sm90",         "flexc_backward_fold_sm90"};
    CHECK(launched == expected);
    CHECK(std::holds_alternative<RoundGradients>(pass.steps.back()));
}
