#include "plan/plan.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "common/sequences.h"
#include "passes/inside_calls.h"
#include "plan/arch/family.h"
#include "support/text.h"

namespace flexc::plan {

namespace {

void add_block_mask_builder(const passes::Mod& mod, KernelPlan& plan) {
    using analysis::Dependence;
    const Dependence reads = mod.dependence[mod.mask];
    plan.block_mask_facts = {.by_batch = reads.has(Dependence::b),
                             .by_head = reads.has(Dependence::h),
                             .queries = mod.program.query_layout,
                             .keys = mod.program.key_layout};
    const bool has_intervals = mod.mask_tier == analysis::MaskTier::tile_tests;
    plan.block_mask =
        KernelConfig{.kind = KernelKind::block_mask,
                     .template_path = "block_mask.cu",
                     .entry = "flexc_block_mask_tiles",
                     .block = {.warps = 8},
                     .reason = has_intervals ? "tiles by intervals, then by their elements"
                                             : "tiles by their elements"};
}

KernelConfig length_reader() {
    return {.kind = KernelKind::lengths,
            .template_path = "lengths.cu",
            .entry = "flexc_read_lengths",
            .block = {.warps = 16},
            .reason = "records of requests from arrays on the device"};
}

} // namespace

std::vector<KernelConfig> candidates(const KernelRequest& request) {
    std::vector<KernelConfig> all;
    std::string others; // why earlier families have no candidates
    for (const Family* family : families()) {
        const std::string_view why = family->why_not(request);
        const bool follows = !all.empty();
        // Kernels that follow would add to dq in no fixed order.
        const bool loses_order =
            request.kind == KernelKind::backward_fused && request.deterministic;
        if (why.empty() && !(follows && loses_order))
            for (KernelConfig& config : family->candidates(request, follows)) {
                config.reason += others;
                all.push_back(std::move(config));
            }
        if (request.schedule && !all.empty()) break;
        if (family->runs_on(request.arch) && request.kind != KernelKind::backward_dkdv)
            others += formatted("; not {}'s kernel: {}", family->called,
                                why.empty() ? "every tile of it spills registers" : why);
    }
    return all;
}

std::vector<ForwardSchedule> forward_schedules(const KernelRequest& request) {
    for (const Family* family : families())
        if (family->why_not(request).empty())
            return family->schedules == nullptr ? std::vector<ForwardSchedule>()
                                                : family->schedules(request);
    return {};
}

std::string_view warning_about(const Target& target) {
    for (const Family* family : families())
        if (family->runs_on(target.number)) return family->warning(target);
    return "";
}

Result<KernelPlan> make_plan(const TargetProgram& program) {
    KernelPlan plan;
    auto forward = forward_variants(program);
    if (!forward) return forward.error();
    plan.forward = std::move(*forward);
    if (program.needs_block_mask()) add_block_mask_builder(program.mod(), plan);
    if (!program.mod().program.is_dense()) plan.lengths = length_reader();
    if (!program.options().backward) return plan;
    auto backward = backward_variants(program);
    if (!backward) return backward.error();
    plan.backward = std::move(*backward);
    return plan;
}

PassPlan pass_of(const TargetProgram& program, const Variant& variant, const KernelConfig& main) {
    const Family& family = family_of(main);
    const TargetProgram& own = program_of(variant, program);
    PassPlan pass =
        main.kind == KernelKind::forward ? family.forward(own, main) : family.backward(own, main);
    pass.is_of_inside_calls = passes::is_of_inside_calls(own.mod());
    pass.most_rows = variant.request.sequences.most_rows;
    pass.has_few_queries = variant.request.sequences.has_few_queries;
    for (Step& step : pass.steps) {
        auto* launch = std::get_if<Launch>(&step);
        if (launch == nullptr) continue;
        const KernelConfig& kernel = pass.kernels[launch->kernel];
        if (kernel.has_block_mask && launch->entry == kernel.entry)
            launch->block_mask = mask_tiling(kernel, !program.mod().program.is_dense());
    }
    return pass;
}

void append(PassPlan& pass, PassPlan further) {
    const std::size_t before = pass.kernels.size();
    for (Step& step : further.steps)
        if (auto* launch = std::get_if<Launch>(&step)) launch->kernel += before;
    const auto rounds = std::ranges::find_if(pass.steps, [](const Step& step) {
        return std::holds_alternative<RoundSums>(step) ||
               std::holds_alternative<RoundGradients>(step);
    });
    const auto append_all = [](auto& to, auto& from) {
        to.insert(to.end(), std::make_move_iterator(from.begin()),
                  std::make_move_iterator(from.end()));
    };
    pass.steps.insert(rounds, std::make_move_iterator(further.steps.begin()),
                      std::make_move_iterator(further.steps.end()));
    append_all(pass.kernels, further.kernels);
    append_all(pass.small_buffers, further.small_buffers);
    append_all(pass.tiled_biases, further.tiled_biases);
    append_all(pass.bound_tables, further.bound_tables);
    pass.query_offset_step = std::lcm(pass.query_offset_step, further.query_offset_step);
    pass.key_offset_step = std::lcm(pass.key_offset_step, further.key_offset_step);
    // Kernels that follow one another use the same memory, as far as each needs it.
    for (WorkspaceRegion& region : further.workspace) {
        const auto same =
            std::ranges::find(pass.workspace, region.region, &WorkspaceRegion::region);
        if (same == pass.workspace.end())
            pass.workspace.push_back(std::move(region));
        else if (same->elements.of({}) < region.elements.of({})) // they differ by a factor at most
            same->elements = std::move(region.elements);
    }
}

MaskTiling mask_tiling(const KernelConfig& kernel, bool of_requests) {
    // All queries of a request with few queries are one tile, whichever rows a block has.
    if (kernel.sequences.has_few_queries)
        return {kMostFewRows, kernel.block.key_tile, false, RowsOf::few};
    const bool leaves_few = of_requests && kernel.kind == KernelKind::forward;
    // A block of these has a tile of keys and visits queries, not the other way.
    const bool owns_keys =
        kernel.kind == KernelKind::backward_dkdv || kernel.kind == KernelKind::backward_fused;
    return {kernel.block.query_tile, kernel.block.key_tile, owns_keys,
            leaves_few ? RowsOf::many : RowsOf::all};
}

KernelConfig with_schedule(const Variant& variant, const ForwardSchedule& schedule) {
    KernelRequest request = variant.request;
    request.schedule = schedule;
    return candidates(request).front();
}

} // namespace flexc::plan
