// The steps of the generic forward and backward, and the family that they belong to.
#include <utility>

#include "plan/arch/sm80/sm80.h"
#include "plan/gradients.h"
#include "plan/target_program.h"

#include "sm80/arguments.h"

namespace flexc::plan::sm80 {

namespace {

using Of = Length::Of;

constexpr Region kDelta{"delta"}, kDqAccumulator{"dq_accumulator"},
    kPartialResults{"partial_results"};

// Returns the number of floats in a workspace array with `columns` floats for each query.
Extent query_rows(const TargetProgram& program, int columns) {
    if (program.options().query_layout == Layout::ragged)
        return {{{columns, {{Of::heads}, {Of::all_queries}}}}};
    return {{{columns, {{Of::batch}, {Of::heads}, {Of::queries}}}}};
}

// For short sequences: launches as many blocks as the GPU can hold at once, each of which computes
// one sequence after another.
void make_persistent(const KernelConfig& main, Launch& launch) {
    launch.is_persistent = true;
    launch.blocks_at_once = main.block.blocks_at_once;
}

// The launches of the kernel for few queries, with the blocks that a call of known lengths needs.
struct FewLaunches {
    Launch attend, merge;
};
FewLaunches few_launches(const TargetProgram& program, std::size_t kernel,
                         const KernelConfig& config) {
    const KernelRequest request = program.request(KernelKind::forward);
    // Each block computes one or more such tiles.
    const ::sm80::TileSizes tile = sizes(request, config.block);
    const int rows = tile.query_tile * ::sm80::most_few_tiles(tile);
    Launch few = launch_of(
        kernel, config, {{{1, {{Of::few_parts}, {Of::kv_heads}, tiles_of(Of::few_rows, rows)}}}});
    few.threads_y = ::sm80::few_warps(tile);
    const int of_tile = ::sm80::few_bytes(tile, 1) - ::sm80::few_bytes(tile, 0);
    if (!is_of_warpgroups(config))
        few.used_shared_bytes = {
            {{::sm80::few_bytes(tile, 0)}, {of_tile, {tiles_of(Of::few_rows, tile.query_tile)}}}};
    few.starts_early =
        request.arch >= 90 && config.has_block_mask; // before the block mask is built
    few.writes = {kPartialResults};
    Launch merge =
        launch_of(kernel, config, {{{1, {{Of::batch}, {Of::kv_heads}, {Of::merging_blocks}}}}});
    merge.entry = "flexc_merge_parts";
    merge.threads = 32;
    merge.threads_y = ::sm80::kMergingWarps;
    merge.shared_bytes = ::sm80::merging_bytes(program.options().head_dim_v);
    merge.starts_early = request.arch >= 90;
    merge.reads = {kPartialResults};
    return {std::move(few), std::move(merge)};
}

// Returns how many floats a row of a part's results has: its output, maximum and sum.
int partial_columns(const TargetProgram& program) { return program.options().head_dim_v + 2; }

// The pass of dense tensors with few queries.
PassPlan forward_of_few(const TargetProgram& program, const KernelConfig& main) {
    PassPlan pass;
    pass.kernels = {main};
    pass.workspace = {{.region = kPartialResults,
                       .elements = {{{partial_columns(program),
                                      {{Of::joined_parts}, {Of::kv_heads}, {Of::few_rows}}}}},
                       .argument = argument(&::sm80::KernelArguments::partial_results)}};
    pass.length_arguments = {
        {argument(&::sm80::KernelArguments::entry_parts), {{{1, {{Of::entry_parts}}}}}}};
    FewLaunches launches = few_launches(program, 0, main);
    pass.steps = {std::move(launches.attend), std::move(launches.merge)};
    return pass;
}

PassPlan forward(const TargetProgram& program, const KernelConfig& main) {
    if (main.sequences.has_few_queries) return forward_of_few(program, main);
    PassPlan pass;
    pass.kernels = {main};
    pass.steps = {launch_of(0, main, query_tiles(program, main.block.query_tile))};
    if (main.sequences.is_short) make_persistent(main, std::get<Launch>(pass.steps.back()));
    if (!program.mod().program.is_dense()) add_few_queries(program, pass);
    return pass;
}

// Adds the steps that find, for each query, the reference of its weights, and delta.
void add_delta(const TargetProgram& program, bool has_sink, PassPlan& pass) {
    pass.steps.push_back(find_references(program, pass.main));
    const KernelConfig& kernel = pass.kernels.front();
    Launch of_delta = launch_of(0, kernel, query_tiles(program, kernel.block.query_tile));
    of_delta.writes = {kDelta};
    if (has_sink) {
        of_delta.reads.push_back(regions::row_statistics);
        of_delta.writes.push_back(regions::row_statistics);
    }
    pass.steps.push_back(std::move(of_delta));
}

PassPlan backward(const TargetProgram& program, const KernelConfig& main) {
    const bool is_split = main.kind == KernelKind::backward_dkdv;
    const bool is_short = main.sequences.is_short; // the main kernel computes dq too
    const bool is_fused = !is_split && !is_short;
    const int head_dim = program.options().head_dim;
    KernelRequest of_dq = program.request(KernelKind::backward_dq);
    of_dq.mask.has_block_mask = main.has_block_mask;
    const bool has_sink = program.mod().sink != ir::kNoNode;
    // A block that has a whole sequence computes delta and references of its queries itself, unless
    // a sink needs them before.
    const bool has_delta = has_sink || !is_short;
    PassPlan pass;
    if (has_delta) pass.kernels.push_back(delta_kernel());
    pass.main = pass.kernels.size();
    pass.kernels.push_back(main);
    if (!is_short) pass.kernels.push_back(is_fused ? convert_kernel() : query_kernel(of_dq));
    if (has_sink) pass.kernels[0].reason += kBesideSink;
    if (has_delta)
        pass.workspace.push_back({.region = kDelta,
                                  .elements = query_rows(program, 1),
                                  .argument = argument(&::sm80::KernelArguments::delta)});
    if (is_fused)
        pass.workspace.push_back({.region = kDqAccumulator,
                                  .elements = query_rows(program, head_dim),
                                  .argument = argument(&::sm80::KernelArguments::dq_accumulator)});
    if (has_delta) add_row_statistics(program, pass);
    add_exact_sums(program, pass);

    pass.steps.push_back(FillGradients{});
    if (is_fused) pass.steps.push_back(Fill{kDqAccumulator});
    add_fill_of_exact_sums(pass);
    if (has_delta) add_delta(program, has_sink, pass);
    const bool by_heads = is_split && pass.heads_at_once != passes::HeadsAtOnce::all;
    Launch of_keys = launch_of(pass.main, main,
                               by_heads ? key_tiles_of_each(main.block.key_tile)
                                        : key_tiles(program, main.block.key_tile));
    if (has_delta) of_keys.reads = {kDelta, regions::row_statistics};
    if (is_fused) of_keys.writes = {kDqAccumulator};
    of_keys.by_heads = is_split;
    if (is_short) make_persistent(main, of_keys);
    pass.heads_have_own_keys = is_short && program.request(main.kind).gradients.by_batch;
    pass.steps.push_back(std::move(of_keys));
    if (!is_short) {
        Launch of_queries =
            launch_of(2, pass.kernels[2], query_tiles(program, pass.kernels[2].block.query_tile));
        of_queries.reads =
            is_fused ? std::vector{kDqAccumulator} : std::vector{kDelta, regions::row_statistics};
        pass.steps.push_back(std::move(of_queries));
    }
    add_rounding(program, pass);
    return pass;
}

} // namespace

void add_few_queries(const TargetProgram& program, PassPlan& pass) {
    std::get<Launch>(pass.steps.back()).of_many_rows = true;
    const KernelRequest request = program.request(KernelKind::forward);
    pass.kernels.push_back(few_queries_kernel(request));
    const int columns = partial_columns(program);
    // Returns an upper bound on the parts of all requests' KV heads, times of_each and `factors`.
    const auto parts = [&](std::int64_t of_each, const std::vector<Length>& factors) -> Extent {
        std::vector<Length> of_requests = factors, others = factors;
        of_requests.insert(of_requests.end(), {{Of::batch}, {Of::kv_heads}});
        if (!program.options().batch_invariant)
            return {{{kPartBlocks * of_each, others}, {of_each, of_requests}}};
        others.push_back({Of::batch});
        return {{{kOwnPartBlocks * of_each, others}, {of_each, of_requests}}};
    };
    pass.workspace.push_back({.region = kPartialResults,
                              .elements = parts(columns, {{Of::few_rows}}),
                              .argument = argument(&::sm80::KernelArguments::partial_results)});
    const std::size_t kernel = pass.kernels.size() - 1;
    FewLaunches launches = few_launches(program, kernel, pass.kernels[kernel]);
    const auto& tiles = launches.attend.blocks.terms[0].lengths.back();
    launches.attend.known_blocks = std::exchange(launches.attend.blocks, parts(1, {tiles}));
    launches.merge.known_blocks = std::exchange(
        launches.merge.blocks,
        {{{1, {{Of::batch}, {Of::kv_heads}, tiles_of(Of::few_rows, ::sm80::kMergingWarps)}},
          {::sm80::kMergingBlocksBeside, {}}}});
    pass.steps.insert(pass.steps.begin(), {std::move(launches.attend), std::move(launches.merge)});
}

::sm80::TileSizes sizes(const KernelRequest& request, const BlockShape& block) {
    return {.query_tile = block.query_tile,
            .key_tile = block.key_tile,
            .stages = block.stages,
            .head_dim = request.head_dim,
            .head_dim_v = request.head_dim_v,
            .element_bytes = static_cast<int>(size_of(request.dtype)),
            .key_element_bytes =
                static_cast<int>(size_of(request.kv_dtype.value_or(request.dtype))),
            .has_scales = request.sequences.has_entry_scales};
}

const Family& family() {
    static constexpr Family kFamily = {
        .name = kName,
        .called = "the generic",
        .runs_on = [](int arch) { return arch >= 80; },
        .has_own_instructions = false,
        .warning = [](const Target&) -> std::string_view { return ""; },
        .why_not = [](const KernelRequest& request) -> std::string_view {
            return request.gradients.are_alone ? "it computes dq, dk and dv too" : "";
        },
        .candidates =
            [](const KernelRequest& request, bool is_last_resort) {
                return request.kind == KernelKind::forward
                           ? forward_candidates(request, is_last_resort)
                           : backward_candidates(request);
            },
        .schedules = nullptr,
        .forward = forward,
        .backward = backward,
        .describe = nullptr};
    return kFamily;
}

} // namespace flexc::plan::sm80
