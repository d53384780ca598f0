// Chooses the tiles of Hopper's fused backward kernel.
#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

#include "plan/arch/sm90/backward_reason.h"
#include "plan/arch/sm90/backward_spills.h"
#include "plan/arch/sm90/backward_tile.h"
#include "plan/arch/sm90/element_sums.h"
#include "plan/arch/sm90/sm90.h"
#include "plan/work.h"

namespace flexc::plan::sm90 {
namespace {

using ::sm90::BackwardShape, ::sm90::RegisterForm;

// Whether MMAs can sum a tile by the 2-D key index: its keys must be whole rows, and a row a whole
// number of MMA steps.
bool sums_by_mma(const passes::Index2dReads& reads) {
    constexpr int kStep = 16;
    return reads.width > 0 && 64 * ::sm90::kConsumers % reads.width == 0 &&
           reads.width % kStep == 0 && reads.sums_are_linear;
}

// Whether dk and dv, if there are any, leave registers for more than one thing that elements need
// beside products.
bool has_narrow_heads(const KernelRequest& request) {
    constexpr int kMostColumns = 192; // of keys and values together
    return request.gradients.are_alone || request.head_dim + request.head_dim_v <= kMostColumns;
}

// Whether the code for elements is too long to be emitted for each kind of tile: compilers take
// more than linear time for it, and spill more. The limit is lower with a block mask, which leaves
// fewer registers.
bool has_long_scores(const KernelRequest& request) {
    // In instructions. The library's mods with this kernel have fewer.
    constexpr int kMost = 140, kMostWhereShort = 60;
    const bool is_short =
        request.work.is_large || (request.has_score_mod && request.mask.has_block_mask);
    // Functions of scores, together with gradients of buffers, leave too few registers for two
    // copies.
    if (request.gradients.partials_use_score && request.work.of_score.special_functions != 0 &&
        !has_narrow_heads(request))
        return true;
    return request.work.copied_instructions > (is_short ? kMostWhereShort : kMost);
}

// Whether warpgroups share one copy of the code for a tile, instead of one for each turn at dq and,
// with a band, for tiles in which it hides keys: these would not stay in the instruction cache. The
// address of a dense bias that is copied counts as instructions that no element has.
bool writes_scores_once(const KernelRequest& request) {
    constexpr int kMost = 8; // instructions of an element, in all copies
    const bool computes = request.has_score_mod && request.bias.bytes == 0;
    return (computes && request.work.copied_instructions > kMost) || has_long_scores(request);
}

// Returns how many elements have their sums computed at once. Where gradients of terms are summed,
// what enters the terms of all elements of a tile is kept in any case.
int elements_at_once(const KernelRequest& request, const FusedTile& tile) {
    if (request.gradients.by_terms) return kMostSumElements;
    constexpr int kRegisters = 218; // of a thread, for accumulators and sums
    // P is packed beside its product with derivatives.
    const int fragments = request.folds_derivative() ? tile.query_tile / 4 : 0;
    const int of_warpgroup = accumulators_of(request, tile) + fragments;
    return sum_elements_of_keys(request.sums,
                                kRegisters - of_warpgroup / (shares_keys(request) ? 2 : 1));
}

bool suits(const KernelRequest& request, const FusedTile& tile) {
    if (shares_keys(request)) return tile.query_tile == kRowBlock;
    // The rest of a thread's 240 registers is for fragments and the mod.
    constexpr int kMostAccumulators = 192;
    // A tile of 128 queries needs rows of at most 64 columns, because a warpgroup's piece of dq is
    // 64 columns, or 64 of 128 rows. It is not used in these cases either:
    // - If elements are added one by one, or wait in registers for the terms of sums, these spill,
    //   and a compile takes up to a minute.
    // - Loops over the terms of sums, which take longer than products, have registers for more
    //   elements at once beside a shorter tile.
    // - With a derivative of each score, P would fit in 16 bits only. One of each position that
    //   takes long would be computed twice, and spills.
    // - Sums over distances would need registers that the warps beside the MMAs do not have.
    // - The text of a large program with long code for each element would be twice as long.
    // - What elements compute from values of queries would spill, and so would derivatives that
    //   they compute with 64-bit integers.
    constexpr int kMostFromRows = 20; // instructions
    const bool computes_from_rows = request.has_score_mod && !request.mask.has_block_mask &&
                                    request.derivative.computes_rows &&
                                    request.work.element_instructions > kMostFromRows;
    const bool has_sums = request.sums.count != 0 || request.gradients.by_terms;
    if (tile.query_tile == 2 * kRowBlock &&
        (request.head_dim > 64 || request.gradients.by_element || has_sums ||
         request.derivative.uses_score || request.derivative.is_costly || computes_from_rows ||
         request.gradients.partials_are_wide ||
         (request.work.is_large && has_long_scores(request)) || request.gradients.by_distance ||
         request.gradients.by_table || request.gradients.grid_places > 0 ||
         request.gradients.by_shift || request.gradients.weighs_distances))
        return false;
    return accumulators_of(request, tile) <= kMostAccumulators &&
           fits(request, shape_of(request, tile));
}

// Returns the best tile that copies a bias or adds gradients of dense ones; nothing if none fits.
std::optional<FusedTile> bias_tile_of(const KernelRequest& request) {
    if (shares_keys(request) || (request.bias.bytes == 0 && !request.bias.adds_gradients))
        return {};
    struct Stages {
        int query_tile, of_d_scores, of_bias;
    };
    for (const Stages& stages : {Stages{2 * kRowBlock, 2, 1},
                                 {2 * kRowBlock, 1, 1},
                                 {kRowBlock, 2, 2},
                                 {kRowBlock, 2, 1},
                                 {kRowBlock, 1, 1},
                                 {kRowBlock, 2, 0}}) {
        const FusedTile tile{
            .query_tile = stages.query_tile,
            .sums = {.adds_bias_gradients = request.bias.adds_gradients},
            .storage = {.d_scores_stages = stages.of_d_scores, .bias_stages = stages.of_bias}};
        if (stages.of_bias > 0 && request.bias.bytes == 0) continue;
        // The second half of the queries waits in registers as dS, so gradients of biases must
        // equal dS.
        if (tile.query_tile > kRowBlock && !request.bias.has_gradient_of_score) continue;
        // Addresses of shifted elements take registers that a long tile does not leave.
        if (tile.query_tile > kRowBlock && request.bias.is_shifted) continue;
        // Warps that add from the tile of dS release it one tile later than others do.
        const bool reads_tile = (request.bias.adds_gradients && request.bias.has_narrow_gradient) ||
                                request.gradients.by_shift;
        if (reads_tile && stages.of_d_scores == 1) continue;
        if (tile.has_dense_bias() && suits(request, tile)) return tile;
    }
    return {};
}

// Returns the tile if there is room for it. Beside tiles of weighted gradients, which have two
// stages, values of rows are not staged or dS has one stage where that makes room.
std::optional<FusedTile> fitting_tile(const KernelRequest& request, FusedTile tile) {
    const BackwardShape shape = shape_of(request, tile);
    if (!shape.has_weighted_tile) return fits(request, shape) ? std::optional(tile) : std::nullopt;
    for (const int stages : {2, 1})
        for (const bool stages_rows : {should_stage_rows(request, shape), false}) {
            tile.storage.d_scores_stages = stages;
            tile.storage.stages_rows = stages_rows;
            if (fits(request, shape_of(request, tile))) return tile;
        }
    return std::nullopt;
}

// Returns the tile with as much memory for sums of tables as fits, or nothing. multiplies_kinds:
// one by kinds is multiplied beside others, which takes memory of its own.
std::optional<FusedTile> with_tables(const KernelRequest& request, FusedTile tile,
                                     bool multiplies_kinds, bool adds_biases_beside) {
    tile.sums.sums_tables = true;
    tile.sums.adds_biases_beside = adds_biases_beside;
    tile.storage.kind_words = multiplies_kinds ? ::sm90::kMostKindWords : 0;
    for (const int words : {2048, 1024, 512}) {
        tile.storage.table_words = words;
        if (const auto fitting = fitting_tile(request, tile)) return fitting;
    }
    return std::nullopt;
}

constexpr int kMostEntries = (1 << 16) - 1; // 16 bits number an entry, or none

// Returns the tile with copies of as many entries as there is room for: a call's copies are as many
// as that has room for.
std::optional<FusedTile> with_bound_entries(const KernelRequest& request, FusedTile tile) {
    constexpr int kFewest = 1024;
    tile.sums.sums_tables = true;
    tile.storage.entries_are_bound = true;
    tile.storage.entries = kFewest - 1;
    const int end = backward_layout(with_query_sums(request, shape_of(request, tile))).end;
    const int left = shared_memory_limit(request.arch) - end;
    if (left < 0) return std::nullopt;
    tile.storage.entries = std::min(tile.storage.entries + left / 16 * 4, kMostEntries);
    return tile;
}

// Returns the tile whose elements are added to copies of all entries, as many copies as there is
// room for, up to one for each lane; nothing if there is no room.
std::optional<FusedTile> with_entries(const KernelRequest& request, FusedTile tile) {
    const passes::EntryCount& entries = request.gradients.entries_of_elements;
    if (entries.is_bound) return with_bound_entries(request, tile);
    constexpr int kMostShift = 5;
    tile.sums.sums_tables = true;
    tile.storage.entries = entries.known;
    for (int shift = kMostShift; shift >= 0; --shift) {
        tile.storage.entry_copy_shift = shift;
        if (tile.storage.entries <= kMostEntries && fits(request, shape_of(request, tile)))
            return tile;
    }
    return std::nullopt;
}

// Returns the way in which the tile sums tables fastest; nothing if there is no room. Wide heads
// leave registers for one of these: a tile of weighted gradients, products of kinds beside other
// tables, and dense biases from the same tiles.
std::optional<FusedTile> fastest_sums(const KernelRequest& request, const FusedTile& tile) {
    const BufferGradients& gradients = request.gradients;
    const bool adds_biases = gradients.adds_biases_beside;
    const bool multiplies =
        gradients.sums_kinds_beside &&
        (has_narrow_heads(request) || !(gradients.weighs_tables || adds_biases));
    if (multiplies || adds_biases)
        if (const auto way = with_tables(request, tile, multiplies, adds_biases)) return way;
    return with_tables(request, tile, false, false);
}

// Returns the tile with a tile of elements' gradients beside that of dS, whose diagonals are
// summed, or nothing if there is no room.
std::optional<FusedTile> with_weighted_distances(const KernelRequest& request, FusedTile tile) {
    tile.sums.weighs_distances = true;
    return fitting_tile(request, tile);
}

// Returns the ways in which warps beside the products may sum grids, tables or weighted distances,
// the fastest first: at most two, as what the faster one spills is known only when it has been
// compiled. The slower one, if there is any, adds weighted gradients element by element, and sums
// others entry by entry. Large programs, of which few candidates are compiled, have the last one
// alone.
std::vector<FusedTile> ways_of_warps(const KernelRequest& request, const FusedTile& tile) {
    const BufferGradients& gradients = request.gradients;
    if (gradients.grid_places > 0) {
        FusedTile of_grid = tile;
        of_grid.sums.sums_grids = true;
        of_grid.storage.table_words = ::sm90::grid_words(gradients.grid_places);
        if (fits(request, shape_of(request, of_grid))) return {of_grid};
    }
    const bool is_weighted = gradients.weighs_tables || gradients.weighs_distances;
    if ((!gradients.by_table && !is_weighted) || (is_weighted && shares_keys(request)))
        return {tile};
    const std::optional<FusedTile> fastest = gradients.weighs_distances
                                                 ? with_weighted_distances(request, tile)
                                                 : fastest_sums(request, tile);
    if (!fastest) return {tile};
    // Kernels for gradients of buffers alone are there for these sums.
    if (is_weighted && gradients.are_alone) return {*fastest};
    FusedTile slower = tile;
    if (!is_weighted) {
        if (fastest->storage.kind_words == 0 && !fastest->sums.adds_biases_beside)
            return {*fastest};
        slower = with_tables(request, tile, false, false).value_or(tile);
    }
    if (request.work.is_large) return {slower};
    slower.way_to_sum = 1;
    std::vector<FusedTile> ways = {*fastest, slower};
    ways.front().has_slower_way = true;
    return ways;
}

// Whether elements are added to copies of all entries of tables, if there is room. Beside products
// for dq, dk and dv, what other sums take would spill; and a large program, of which few candidates
// are compiled, would be generic if this way spills much. What reads much for each element spills
// in every kernel.
bool may_have_entries(const KernelRequest& request) {
    const BufferGradients& gradients = request.gradients;
    return gradients.entries_of_elements.exist() && !shares_keys(request) &&
           !request.work.reads_much() &&
           (gradients.are_alone || (!gradients.has_sums_beside_entries && !request.work.is_large));
}

// Returns all ways in which the tile may sum gradients, the fastest first.
std::vector<FusedTile> ways_to_sum(const KernelRequest& request, const FusedTile& tile) {
    std::vector<FusedTile> ways = ways_of_warps(request, tile);
    if (!may_have_entries(request)) return ways;
    auto of_elements = with_entries(request, tile);
    if (!of_elements) return ways;
    // A kernel for these sums alone has registers for them.
    if (request.gradients.are_alone) return {*of_elements};
    of_elements->has_slower_way = true;
    for (FusedTile& slower : ways)
        ++slower.way_to_sum;
    ways.insert(ways.begin(), *of_elements);
    return ways;
}

// Whether the warps beside the MMAs can spill: they do more than load, or have the fewest
// registers, as if derivatives of buffers use the score.
bool can_spill_beside(const KernelRequest& request) {
    const bool adds_derivatives_of_score =
        request.gradients.partials_use_score ||
        (request.derivative.uses_score && !request.folds_derivative());
    return request.derivative.computes_rows || adds_derivatives_of_score ||
           request.bias.bytes > 0 || request.bias.adds_gradients;
}

// Returns the forms of a tile in the order in which they are tried. There is only the first if
// warpgroups share keys, or with sums by a 2-D key index, which spill as much in the others. Of a
// mask alone, the warps beside the MMAs spill only where a query takes many instructions, and with
// very many save registers from the start. If a derivative is folded into P, the last form
// subtracts references apart; with a window it replaces modifies_in_parts, whose branches serialise
// products there. Programs that take long to compile have at most three forms, and one more if they
// take roots. Derivatives that wide heads' elements compute with 64-bit integers spill in all forms
// but those that modify scores in parts.
std::vector<RegisterForm> register_forms(const KernelRequest& request) {
    using enum RegisterForm;
    if (shares_keys(request) || index_2d_of(request).width != 0) return {keeps_all};
    std::vector<RegisterForm> forms;
    if (!request.has_score_mod) {
        constexpr int kMostOfFirst = 320; // instructions of a query, beyond which it spills much
        if (request.work.row_instructions <= kMostOfFirst) forms.push_back(keeps_all);
        if (request.work.row_instructions > kMostOfPosition) forms.push_back(saves_beside);
        forms.push_back(saves_all);
        return forms;
    }
    constexpr int kRoomForWide = 224; // columns of keys and values together
    if (request.gradients.partials_are_wide && !request.gradients.are_alone &&
        request.head_dim + request.head_dim_v > kRoomForWide)
        return {request.work.takes_roots ? modifies_by_pairs : modifies_in_parts};
    forms.push_back(keeps_all);
    const bool is_quick = !request.work.computes_much();
    if (is_quick && can_spill_beside(request)) forms.push_back(saves_beside);
    forms.push_back(saves_all);
    if (!request.folds_derivative() || !request.mask.has_window) forms.push_back(modifies_in_parts);
    if (request.folds_derivative() && (is_quick || request.mask.has_window))
        forms.push_back(subtracts_apart);
    if (!request.folds_derivative() && request.work.takes_roots) forms.push_back(modifies_by_pairs);
    return forms;
}

// Returns the tiles that neither copy dense biases nor add their gradients, best first: reading
// columns of a 2-D key index from memory costs more than smaller tiles do, and so do sums without
// MMAs.
std::vector<FusedTile> usual_tiles(const KernelRequest& request) {
    std::vector<FusedTile> tiles;
    const passes::Index2dReads index_2d = index_2d_of(request);
    for (const bool stages_columns : {true, false}) {
        if (stages_columns && index_2d.by_column == 0) continue;
        for (const bool stages_sums : {true, false}) {
            if (stages_sums && !sums_by_mma(index_2d)) continue;
            for (const int query_tile : {2 * kRowBlock, kRowBlock})
                if (const FusedTile tile{
                        .query_tile = query_tile,
                        .storage = {.stages_columns = stages_columns, .stages_sums = stages_sums}};
                    suits(request, tile))
                    tiles.push_back(tile);
        }
    }
    return tiles;
}

// Returns the tile with memory for sums of terms, if there is room.
FusedTile with_term_words(const KernelRequest& request, const FusedTile& tile) {
    FusedTile keeping = tile;
    keeping.storage.term_words = request.gradients.term_reads.words(::sm90::kTermKeys);
    keeping.storage.term_keys = ::sm90::kTermKeys;
    return fits(request, shape_of(request, keeping)) ? keeping : tile;
}

// Whether what elements bring into sums, beside wide heads, leaves no registers for what only the
// first forms keep.
bool brings_much_into_sums(const KernelRequest& request, const FusedTile& tile) {
    return elements_at_once(request, tile) != 0 && !request.gradients.by_terms &&
           !has_narrow_heads(request) && !request.folds_derivative() && !tile.has_dense_bias();
}

// Returns the tile in each of its forms, which save ever more registers and are ever slower; only
// in the first and the last where a slower way to sum follows, so that such a program has two
// compiles more at most. With copies of all entries, the last seldom spills less.
std::vector<FusedTile> in_forms(const KernelRequest& request, FusedTile tile) {
    std::vector<RegisterForm> forms = register_forms(request);
    const auto saving = std::ranges::find(forms, RegisterForm::saves_all);
    if (saving != forms.end() && brings_much_into_sums(request, tile))
        forms.erase(forms.begin(), saving);
    if (tile.has_slower_way && forms.size() > 2) forms.erase(forms.begin() + 1, forms.end() - 1);
    if (tile.has_slower_way && tile.storage.entries > 0) forms.resize(1);
    std::vector<FusedTile> tiles;
    for (std::size_t i = 0; i < forms.size(); ++i) {
        tile.form = forms[i];
        tile.saving_forms = static_cast<int>(forms.size() - 1 - i);
        tiles.push_back(tile);
    }
    return tiles;
}

// Returns the tiles to try, best first.
std::vector<FusedTile> fused_tiles(const KernelRequest& request) {
    std::vector<FusedTile> tiles;
    if (const auto tile = bias_tile_of(request)) tiles.push_back(*tile);
    for (const FusedTile& tile : usual_tiles(request))
        std::ranges::move(ways_to_sum(request, tile), std::back_inserter(tiles));
    // A slower way to sum tables costs more than smaller tiles do.
    std::ranges::stable_sort(tiles, {}, &FusedTile::way_to_sum);
    std::vector<FusedTile> all;
    for (const FusedTile& tile : tiles)
        std::ranges::move(in_forms(request, with_term_words(request, tile)),
                          std::back_inserter(all));
    return all;
}

// Returns the configuration of tile all[at] of the fused kernel.
KernelConfig fused(const KernelRequest& request, const std::vector<FusedTile>& all,
                   std::size_t at) {
    const FusedTile& tile = all[at];
    const BackwardShape shape = with_query_sums(request, shape_of(request, tile));
    const bool shares = shares_keys(request);
    KernelConfig config;
    config.kind = KernelKind::backward_fused;
    config.family = kName;
    config.template_path = shares ? "backward_wide_sm90.cu" : "backward_sm90.cu";
    config.entry = shares ? "flexc_backward_wide_sm90" : "flexc_backward_sm90";
    // Persistent blocks use the remaining memory for the next tile's keys.
    config.block = {.query_tile = tile.query_tile,
                    .key_tile = shape.key_tile(),
                    .warps = 4 * (::sm90::kConsumers + 1),
                    .stages = ::sm90::kRingStages,
                    .shared_bytes = shape.is_persistent ? shared_memory_limit(request.arch)
                                                        : backward_layout(shape).end,
                    .is_persistent = shape.is_persistent};
    config.form = {static_cast<int>(tile.form), !shares && writes_scores_once(request),
                   !shares && has_long_scores(request)};
    config.gradients_are_alone = request.gradients.are_alone;
    config.sums = tile.sums;
    config.sums.key_width = shape.key_width;
    config.sums.sums_shifts = request.gradients.by_shift;
    config.storage = tile.storage;
    config.storage.query_sums = shape.query_sums;
    config.storage.stages_rows &= should_stage_rows(request, shape);
    config.sum_elements = elements_at_once(request, tile);
    config.has_block_mask = request.mask.has_block_mask;
    config.spills = spill_limits(request, all, at, config);
    const bool follows_others =
        at + static_cast<std::size_t>(tile.saving_forms) >= register_forms(request).size();
    config.reason = reason_of(request, tile, config, follows_others);
    return config;
}

} // namespace

bool has_room_for_tables(const KernelRequest& request) {
    return std::ranges::any_of(fused_tiles(request), &FusedTile::sums_tables);
}
bool has_room_for_sums(const KernelRequest& request) {
    const BufferGradients& gradients = request.gradients;
    const bool takes_words =
        gradients.by_table || gradients.weighs_tables || gradients.grid_places > 0;
    const std::vector<FusedTile> tiles = fused_tiles(request);
    return !tiles.empty() && std::ranges::all_of(tiles, [&](const FusedTile& tile) {
        return (!takes_words || tile.sums_tables()) &&
               (!gradients.weighs_distances || tile.sums.weighs_distances);
    });
}

std::vector<KernelConfig> backward_candidates(const KernelRequest& request) {
    std::vector<KernelConfig> candidates;
    const std::vector<FusedTile> all = fused_tiles(request);
    for (std::size_t at = 0; at < all.size(); ++at) {
        candidates.push_back(fused(request, all, at));
        // Loops over terms leave products in flight too few registers in every form.
        candidates.back().spills.serialise_alike =
            request.sums.count != 0 && !request.gradients.by_terms;
    }
    return candidates;
}

} // namespace flexc::plan::sm90
