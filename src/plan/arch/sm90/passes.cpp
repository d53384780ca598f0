// Limits of Hopper's kernels, and the steps of their forward and backward.
#include "plan/arch/sm80/sm80.h"
#include "plan/arch/sm90/forward_choice.h"
#include "plan/arch/sm90/sm90.h"

#include <numeric>

#include "common/exact_sum.h"
#include "common/tabulated.h"
#include "passes/distance_value.h"
#include "passes/gradient_sum.h"
#include "passes/grid_gradient.h"
#include "plan/gradients.h"
#include "plan/target_program.h"
#include "support/text.h"

#include "sm90/arguments.h"

namespace flexc::plan::sm90 {

namespace {

using Of = Length::Of;

constexpr Region kDqAccumulator{"dq_accumulator"},
    kDqSemaphores{"dq_semaphores"}, // follows dq_accumulator, by which kernels find it
    kDistanceSums{"distance_sums"}, kDistanceValues{"distance_values"}, kKeyValues{"key_values"},
    kPairKinds{"pair_kinds"}, kStoredTiles{"stored_tiles"}, kBlocksDone{"blocks_done"},
    kTilesTaken{"tiles_taken"}, kRowBlockStates{"row_block_states"};

constexpr Length kBatch{Of::batch}, kHeads{Of::heads}, kKvHeads{Of::kv_heads};
// Kernels read and write whole tiles.
constexpr Length kPaddedQueries{Of::queries, 0, kPaddedRows}, kPaddedKeys{Of::keys, 0, kPaddedRows};

// Blocks that each compute `step` distances of a head.
Extent distance_blocks(int step) {
    return {{{1, {kBatch, kHeads, tiles_of(Of::queries, step)}},
             {1, {kBatch, kHeads, tiles_of(Of::keys, step)}}}};
}

std::string_view why_not(const KernelRequest& request) {
    if (request.arch != 90) return "only Hopper has wgmma";
    if (!request.has_own_instructions) return "wgmma is for the architecture sm_90a, not for sm_90";
    if (!request.generic_because.empty()) return request.generic_because;
    if (request.dtype == DType::f32) return "wgmma has no products of floats";
    if (request.head_dim % 8 != 0 || request.head_dim_v % 8 != 0)
        return "TMA needs rows of a multiple of 16 bytes";
    switch (request.kind) {
    case KernelKind::forward:
        return request.reports_out_of_range ? "reads outside buffers are reported" : "";
    case KernelKind::backward_fused:
        if (request.gradients.are_alone)
            return has_room_for_sums(request) ? "" : "there is no room for sums on chip";
        if (!shares_keys(request)) return "";
        if (request.sequences.is_ragged) return "that of wide heads is for dense tensors";
        if (request.deterministic)
            return "additions of dq from registers, which wide heads need, have no order";
        return ((request.gradients.by_table && !request.gradients.weighs_tables) ||
                request.gradients.grid_places > 0) &&
                       !has_room_for_tables(request)
                   ? "that of wide heads has no room for sums of tables"
                   : "";
    default: return "only the generic kernels are split";
    }
}

// Adds the workspace regions of values that are tabulated before the forward, and of kinds of
// pairs.
void add_tabulated(const Forward& forward, const passes::KeyKinds& kinds, PassPlan& pass) {
    const passes::TabulatedValues& tabulated = forward.tabulated;
    const auto of_heads = [&](Length length, int factor) {
        Extent::Product product{factor, {}};
        if (tabulated.by_batch) product.lengths.push_back(kBatch);
        if (tabulated.by_head) product.lengths.push_back(kHeads);
        product.lengths.push_back(length);
        return product;
    };
    constexpr Length kKeys{Of::keys, kForwardOverhang, kTabulatedStep},
        kQueries{Of::queries, kForwardOverhang, kTabulatedStep};
    const auto blocks_of = [](Length length) {
        length.per = length.step;
        return length;
    };
    Launch tabulate{.kernel = pass.main,
                    .entry = "flexc_forward_tabulate_sm90",
                    .blocks = {},
                    .threads = kTabulatedStep};
    if (tabulated.distances > 0) {
        const int of_each = forward.sizes.starts_with_distances ? kStartFloats : kDistanceCopies;
        const int numbers = of_each * tabulated.distances;
        pass.workspace.push_back(
            {.region = kDistanceValues,
             .elements = {{of_heads(kKeys, numbers), of_heads(kQueries, numbers)}},
             .argument = argument(&::sm90::KernelArguments::distance_values)});
        tabulate.blocks.terms.push_back(of_heads(blocks_of(kKeys), 1));
        tabulate.blocks.terms.push_back(of_heads(blocks_of(kQueries), 1));
        tabulate.writes.push_back(kDistanceValues);
    }
    if (tabulated.keys > 0) {
        const int floats = forward.sizes.key_values + kOperandFloats * forward.sizes.key_operands();
        pass.workspace.push_back({.region = kKeyValues,
                                  .elements = {{of_heads(kKeys, floats)}},
                                  .argument = argument(&::sm90::KernelArguments::key_values)});
        tabulate.blocks.terms.push_back(of_heads(blocks_of(kKeys), 1));
        tabulate.writes.push_back(kKeyValues);
    }
    if (const ::sm90::ForwardSizes& sizes = forward.sizes; sizes.pair_kinds != 0) {
        std::vector<Length> tiles = {tiles_of(Of::queries, sizes.query_tile),
                                     tiles_of(Of::keys, sizes.key_tile)};
        if (kinds.pairs_use_batch) tiles.insert(tiles.begin(), kBatch);
        const int bytes =
            ::sm90::pair_kinds_layout(sizes.query_tile, sizes.key_tile, sizes.pair_kinds)
                .tile_bytes;
        pass.workspace.push_back({.region = kPairKinds,
                                  .element_bytes = 1,
                                  .elements = {{{bytes, tiles}}},
                                  .argument = argument(&::sm90::KernelArguments::pair_kinds)});
        tabulate.blocks.terms.push_back({1, tiles});
        tabulate.writes.push_back(kPairKinds);
    }
    pass.steps.push_back(std::move(tabulate));
}

PassPlan forward(const TargetProgram& program, const KernelConfig& main) {
    PassPlan pass;
    pass.kernels = {main};
    const Forward& forward = *forward_of(main);
    // The maximum of products is the maximum of scores only if the scale is positive, and what is
    // added to products is divided by the scale.
    const bool divides = forward.sizes.has_addend_step() || forward.sizes.adds_kinds() ||
                         program.request(KernelKind::forward).terms.plain.adds_keys_alone ||
                         main.decomposition.of == Decomposition::Of::with_aligned_tables ||
                         forward.starts_with_tables || forward.sizes.starts_with_distances;
    pass.least_scale = divides ? 0x1p-20F : std::numeric_limits<float>::denorm_min();
    if (main.decomposition.key_width != 0) // a row of the 2-D key index
        pass.key_offset_step = main.decomposition.key_width;
    pass.small_buffers = small_buffers(program.mod());
    const auto& [mod, parts] = program.decomposed(main.decomposition);
    if (parts.bias_read != ir::kNoNode) pass.copied_biases = {copied_bias_of(mod, parts.bias_read)};
    // Threads that copy biases which TMA cannot have fewer registers there than in other kernels.
    if (main.schedule->consumers == kMostWarpgroups) pass.tiled_biases = pass.copied_biases;
    if (forward.sizes.pair_kinds != 0) pass.bound_tables = bound_kinds(mod, parts.kinds);
    if (forward.tabulates()) add_tabulated(forward, parts.kinds, pass);
    Launch attend = launch_of(0, main, query_tiles(program, main.block.query_tile));
    attend.is_persistent = attend.has_queue = true;
    attend.tensor_maps =
        forward.sizes.copies_keys ? Launch::Maps::forward_queries : Launch::Maps::forward;
    if (forward.tabulated.distances > 0) attend.reads.push_back(kDistanceValues);
    if (forward.tabulated.keys > 0) attend.reads.push_back(kKeyValues);
    if (forward.sizes.pair_kinds != 0) attend.reads.push_back(kPairKinds);
    pass.steps.push_back(std::move(attend));
    if (!program.mod().program.is_dense()) sm80::add_few_queries(program, pass);
    return pass;
}

bool sums_distances(const passes::Mod& mod, const KernelConfig& main) {
    return passes::sums_by(mod, passes::GradientSum::distance, main.sums);
}
bool tabulates_distances(const passes::Mod& mod) { return !passes::distance_values(mod).empty(); }

// Adds the regions of sums and values by distance that the fused kernel `main` needs.
void add_distance_regions(const TargetProgram& program, const KernelConfig& main, PassPlan& pass) {
    const passes::Mod& mod = program.mod();
    const auto region = [&](Region which, auto member, std::size_t of_each, std::size_t bytes) {
        const auto factor = static_cast<std::int64_t>(of_each);
        pass.workspace.push_back({.region = which,
                                  .element_bytes = static_cast<int>(bytes),
                                  .elements = {{{factor, {kBatch, kHeads, kPaddedQueries}},
                                                {factor, {kBatch, kHeads, kPaddedKeys}}}},
                                  .argument = argument(member)});
    };
    using Arguments = ::sm90::KernelArguments;
    // A distance of grids has a sum for each way in which digits borrow.
    if (sums_distances(mod, main))
        region(kDistanceSums, &Arguments::distance_sums,
               main.sums.sums_grids ? std::size_t{1} << mod.digit_places.size() : 1,
               program.options().deterministic ? sizeof(exact::Sum) : sizeof(float));
    if (tabulates_distances(mod))
        region(kDistanceValues, &Arguments::distance_values, passes::distance_values(mod).size(),
               sizeof(float));
}

// Adds the kernel that tabulates values by distance, if there are any.
void add_expansion(const passes::Mod& mod, PassPlan& pass) {
    if (!tabulates_distances(mod)) return;
    Launch tabulate =
        launch_of(pass.kernels.size(), tabulate_kernel(), distance_blocks(kPaddedRows));
    tabulate.writes = {kDistanceValues};
    pass.steps.push_back(std::move(tabulate));
    pass.kernels.push_back(tabulate_kernel());
}

// Adds the launch of the fused kernel. written: regions, beside sums by distance.
void add_fused(const TargetProgram& program, std::size_t kernel, std::vector<Region> written,
               PassPlan& pass) {
    const KernelConfig& main = pass.kernels[kernel];
    Launch fused = launch_of(kernel, main, key_tiles(program, main.block.key_tile));
    fused.tensor_maps = Launch::Maps::backward;
    fused.starts_early = true;
    fused.is_persistent = main.block.is_persistent;
    fused.reads = {regions::row_statistics};
    fused.writes = std::move(written);
    if (tabulates_distances(program.mod())) fused.reads.push_back(kDistanceValues);
    if (sums_distances(program.mod(), main)) fused.writes.push_back(kDistanceSums);
    pass.steps.push_back(std::move(fused));
}

// Adds the kernel that folds sums over diagonals, if there are any.
void add_fold(const passes::Mod& mod, const KernelConfig& main, PassPlan& pass) {
    if (!sums_distances(mod, main)) return;
    const KernelConfig kernel = fold_kernel(main.sums);
    Launch fold = launch_of(pass.kernels.size(), kernel, distance_blocks(kPaddedRows));
    fold.reads = {kDistanceSums};
    pass.steps.push_back(std::move(fold));
    pass.kernels.push_back(kernel);
}

// Sets what a call must satisfy to use `main`, a fused kernel.
void set_conditions(const passes::Mod& mod, const KernelConfig& main, PassPlan& pass) {
    if (main.sums.sums_grids && passes::is_grid_aligned(mod))
        pass.query_offset_step = pass.key_offset_step = ::sm90::kGridStep;
    if (main.sums.key_width != 0) // a row of the 2-D key index
        pass.key_offset_step = std::lcm(pass.key_offset_step, main.sums.key_width);
    pass.tiled_biases = tiled_biases(mod, main);
    pass.small_buffers = small_buffers(mod);
    pass.bound_tables = bound_tables(mod, main);
}

// The steps of a kernel for gradients of buffers alone, which follow those of one that has computed
// dq, dk and dv from the same statistics of rows, and has filled the gradients with zeros.
PassPlan gradients_alone(const TargetProgram& program, const KernelConfig& main) {
    const passes::Mod& mod = program.mod();
    PassPlan pass;
    pass.kernels = {main};
    set_conditions(mod, main, pass);
    add_distance_regions(program, main, pass);
    if (sums_distances(mod, main)) pass.steps.push_back(Fill{kDistanceSums});
    add_expansion(mod, pass);
    add_fused(program, 0, {}, pass);
    add_fold(mod, main, pass);
    return pass;
}

// Whether blocks report when they have added to dq.
bool reports_additions(const TargetProgram& program, const KernelConfig& main) {
    return !shares_keys(program.request(main.kind)) && !main.sums.adds_bias_gradients;
}

void add_region(PassPlan& pass, Region region, auto member, Extent elements,
                int element_bytes = sizeof(float)) {
    pass.workspace.push_back({.region = region,
                              .element_bytes = element_bytes,
                              .elements = std::move(elements),
                              .argument = argument(member)});
}

// Adds the counters by which blocks of the fused kernel know of one another, and returns them. The
// delta kernel clears them.
std::vector<Region> add_counters(const TargetProgram& program, const KernelConfig& main,
                                 PassPlan& pass) {
    using Arguments = ::sm90::KernelArguments;
    std::vector<Region> counters;
    const auto add = [&](Region region, auto member, Extent elements) {
        add_region(pass, region, member, std::move(elements), sizeof(int));
        counters.push_back(region);
    };
    if (reports_additions(program, main)) {
        add(kBlocksDone, &Arguments::blocks_done, {{{1, {kBatch, kKvHeads}}}});
        // Requests of ragged keys have different numbers of blocks.
        if (program.mod().program.is_dense())
            pass.length_arguments.push_back({argument(&Arguments::blocks_of_head),
                                             {{{1, {tiles_of(Of::keys, main.block.key_tile)}}}}});
    }
    if (main.block.is_persistent) add(kTilesTaken, &Arguments::tiles_taken, {{{1, {}}}});
    // The first block to add to a row block of dq stores instead.
    if (reports_additions(program, main) && !program.options().deterministic)
        add(kRowBlockStates, &Arguments::row_block_states,
            padded_query_rows(program, 1, kRowBlock));
    return counters;
}

PassPlan backward(const TargetProgram& program, const KernelConfig& main) {
    if (main.gradients_are_alone) return gradients_alone(program, main);
    using Arguments = ::sm90::KernelArguments;
    const passes::Mod& mod = program.mod();
    const int head_dim = program.options().head_dim;
    const bool deterministic = program.options().deterministic;
    const bool has_sink = mod.sink != ir::kNoNode;
    PassPlan pass;
    pass.kernels = {delta_kernel(), main, convert_kernel(head_dim)};
    pass.main = 1;
    if (has_sink) pass.kernels[0].reason += kBesideSink;
    set_conditions(mod, main, pass);
    pass.stored_gradients = stored_gradients(mod, main);
    const bool stores_gradients = !pass.stored_gradients.buffers.empty();

    add_region(pass, kDqAccumulator, &Arguments::dq_accumulator,
               padded_query_rows(program, head_dim));
    if (deterministic)
        pass.workspace.push_back(
            {.region = kDqSemaphores, .elements = padded_query_rows(program, 1, kRowBlock)});
    add_row_statistics(program, pass);
    add_distance_regions(program, main, pass);
    add_exact_sums(program, pass);
    if (stores_gradients) {
        add_region(pass, kStoredTiles, &Arguments::stored_tiles,
                   {{{2, {kBatch, kKvHeads, {Of::keys, 0, kPaddedRows, kPaddedRows}}}}},
                   sizeof(int));
        pass.workspace.back().of_stored_gradients = true;
    }
    const std::vector<Region> counters = add_counters(program, main, pass);
    std::vector<Region> written = {kDqAccumulator};
    written.insert(written.end(), counters.begin(), counters.end());

    pass.steps.push_back(FillGradients{});
    if (sums_distances(mod, main)) pass.steps.push_back(Fill{kDistanceSums});
    if (deterministic) pass.steps.push_back(Fill{kDqSemaphores});
    if (stores_gradients) pass.steps.push_back(Fill{kStoredTiles});
    add_fill_of_exact_sums(pass);
    add_expansion(mod, pass);
    pass.steps.push_back(find_references(program, pass.main));
    Launch delta = launch_of(0, pass.kernels[0], query_tiles(program, kPaddedRows));
    delta.starts_early = true;
    delta.writes = {regions::row_statistics};
    delta.writes.insert(delta.writes.end(), written.begin(), written.end());
    if (has_sink) delta.reads = {regions::row_statistics};
    pass.steps.push_back(std::move(delta));
    add_fused(program, pass.main, written, pass);
    Launch convert = launch_of(2, pass.kernels[2], query_tiles(program, kRowBlock));
    convert.starts_early = true;
    convert.reads = {kDqAccumulator};
    if (reports_additions(program, main)) convert.reads.push_back(kBlocksDone);
    pass.steps.push_back(std::move(convert));
    add_fold(mod, main, pass);
    add_rounding(program, pass);
    return pass;
}

// Describes the values that are tabulated for keys or distances, and which heads share them.
std::string tabulated_of(const passes::TabulatedValues& tabulated) {
    std::string vectors;
    const auto add = [&](int count, std::string_view each) {
        if (count == 0) return;
        vectors += formatted("{}{} for each {}", vectors.empty() ? "" : ", ", count, each);
    };
    add(tabulated.keys, "key");
    add(tabulated.distances, "distance q_idx - kv_idx");
    return formatted("    tabulated before it, for {}, numbers of the score mod: {}\n",
                     text_of_heads(tabulated.by_batch, tabulated.by_head), vectors);
}

// Describes the slices of tables that are kept on chip.
std::string tables_of(const Forward& forward) {
    std::string words;
    for (const int of_table : forward.table_words)
        words += (words.empty() ? "" : ", ") + std::to_string(of_table);
    return formatted("    in shared memory, {} of a head's slice of each table, up to so many "
                     "entries: {}\n",
                     forward.sizes.table_stages == 1 ? "one copy" : "two copies", words);
}

std::string describe(const KernelConfig& config) {
    const Forward* forward = forward_of(config);
    if (forward == nullptr) return "";
    std::string text;
    if (forward->tabulated.any()) text += tabulated_of(forward->tabulated);
    if (forward->sizes.pair_kinds != 0)
        text += formatted("    tabulated before it, once for all heads: the kind of each pair of a "
                          "query and a key, {}\n",
                          forward->sizes.pair_kinds <= ::sm90::PairKindsLayout::kMostInBytes
                              ? "a byte"
                              : "two bytes");
    if (config.decomposition.stages_tables()) text += tables_of(*forward);
    return text;
}

} // namespace

const Family& family() {
    static constexpr Family kFamily = {
        .name = kName,
        .called = "Hopper",
        .runs_on = [](int arch) { return arch == 90; },
        .has_own_instructions = true, // wgmma and setmaxnreg
        .warning = [](const Target& target) -> std::string_view {
            return target.arch == "sm_90"
                       ? "sm_90 is Hopper without wgmma, so that its kernels are the generic ones; "
                         "sm_90a has Hopper's own"
                       : "";
        },
        .why_not = why_not,
        .candidates =
            [](const KernelRequest& request, bool) {
                return request.kind == KernelKind::forward ? forward_candidates(request)
                                                           : backward_candidates(request);
            },
        .schedules = forward_schedules,
        .forward = forward,
        .backward = backward,
        .describe = describe};
    return kFamily;
}

} // namespace flexc::plan::sm90
