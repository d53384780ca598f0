#include "plan/gradients.h"

#include <algorithm>

#include "common/arguments.h"
#include "common/exact_sum.h"
#include "passes/gradient_order.h"
#include "plan/target_program.h"

namespace flexc::plan {

namespace {

using Of = Length::Of;

} // namespace

Extent query_tiles(const TargetProgram& program, int tile) {
    // Each request starts a new tile.
    if (program.options().query_layout == Layout::ragged)
        return {
            {{1, {{Of::heads}, tiles_of(Of::all_queries, tile)}}, {1, {{Of::heads}, {Of::batch}}}}};
    return {{{1, {{Of::batch}, {Of::heads}, tiles_of(Of::queries, tile)}}}};
}

Extent key_tiles_of_each(int tile) {
    return {{{1, {{Of::batch}, {Of::kv_heads}, tiles_of(Of::keys, tile)}}}};
}
Extent key_tiles(const TargetProgram& program, int tile) {
    if (program.options().key_layout == Layout::ragged)
        return {{{1, {{Of::kv_heads}, tiles_of(Of::all_keys, tile)}},
                 {1, {{Of::kv_heads}, {Of::batch}}}}};
    return key_tiles_of_each(tile);
}

Extent padded_query_rows(const TargetProgram& program, int factor, int per) {
    if (program.options().query_layout == Layout::ragged)
        return {{{factor, {{Of::heads}, {Of::all_queries, 0, kReferenceRows, per}}},
                 {std::int64_t{factor} * kReferenceRows / per, {{Of::heads}, {Of::batch}}}}};
    return {{{factor, {{Of::batch}, {Of::heads}, {Of::queries, 0, kReferenceRows, per}}}}};
}

void add_row_statistics(const TargetProgram& program, PassPlan& pass) {
    Extent of_head = {{{1, {{Of::queries, 0, kReferenceRows}}}}};
    if (program.options().query_layout == Layout::ragged)
        of_head = {{{1, {{Of::all_queries, 0, kReferenceRows}}}, {kReferenceRows, {{Of::batch}}}}};
    pass.workspace.push_back({.region = regions::row_statistics,
                              .elements = padded_query_rows(program, kRowStatistics),
                              .argument = argument(&AttentionArguments::row_statistics)});
    pass.length_arguments.push_back(
        {argument(&AttentionArguments::statistic_rows), std::move(of_head)});
}

Launch find_references(const TargetProgram& program, std::size_t kernel) {
    return {.kernel = kernel,
            .entry = "flexc_backward_references",
            .blocks = query_tiles(program, kReferenceRows),
            .threads = kReferenceRows,
            .writes = {regions::row_statistics}};
}

void add_exact_sums(const TargetProgram& program, PassPlan& pass) {
    const passes::Mod& mod = program.mod();
    if (!mod.deterministic) return;
    const std::vector<passes::ArgumentSlot> slots = passes::argument_slots(mod);
    pass.heads_at_once = passes::heads_at_once(mod);
    if (pass.heads_at_once != passes::HeadsAtOnce::all)
        pass.first_head_word = passes::word_of(slots, {passes::ArgumentSlot::Kind::first_kv_head});
    WorkspaceRegion sums{.region = regions::exact_sums,
                         .element_bytes = sizeof(exact::Sum),
                         .elements = {},
                         .of_gradients = passes::exact_gradients(mod)};
    if (sums.of_gradients.empty()) return;
    for (const std::uint32_t buffer : sums.of_gradients)
        pass.exact_gradients.push_back(
            {buffer, passes::word_of(slots, {passes::ArgumentSlot::Kind::gradient_data, buffer})});
    pass.workspace.push_back(std::move(sums));
}

void add_fill_of_exact_sums(PassPlan& pass) {
    if (!pass.exact_gradients.empty()) pass.steps.push_back(Fill{regions::exact_sums});
}

void add_rounding(const TargetProgram& program, PassPlan& pass) {
    if (!pass.exact_gradients.empty()) {
        pass.steps.push_back(RoundSums{pass.kernels.size()});
        pass.kernels.push_back({.kind = KernelKind::round_sums,
                                .template_path = "round_sums.cu",
                                .entry = "flexc_round_sums",
                                .block = kStreamingBlock,
                                .reason = "gradients of buffers from their exact sums"});
    }
    const bool rounds =
        program.options().gradient_type == GradientType::buffer &&
        std::ranges::any_of(program.mod().program.buffers, [](const ir::Buffer& buffer) {
            return buffer.grad && buffer.dtype != DType::f32;
        });
    if (!rounds) return;
    pass.steps.push_back(RoundGradients{pass.kernels.size()});
    pass.kernels.push_back({.kind = KernelKind::round_gradients,
                            .template_path = "round_gradients.cu",
                            .entry = "flexc_round_gradients",
                            .block = kStreamingBlock,
                            .reason = "gradients of buffers in the buffers' types"});
}

} // namespace flexc::plan
