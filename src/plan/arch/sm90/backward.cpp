// Chooses the tiles of Hopper's fused backward kernel, and configures the kernels that run before
// and after it.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "plan/arch/sm90/element_sums.h"
#include "plan/arch/sm90/sm90.h"
#include "plan/work.h"
#include "support/text.h"

#include "sm90/register_form.h"

namespace flexc::plan::sm90 {
namespace {

using ::sm90::BackwardShape, ::sm90::RegisterForm;

struct FusedTile {
    int query_tile = 0;
    passes::TileSums sums = kNoTileSums;
    BackwardStorage storage;
    int way_to_sum = 0;          // of ways_to_sum(): those of larger numbers are slower
    bool has_slower_way = false; // of which another follows
    RegisterForm form = RegisterForm::keeps_all;
    int saving_forms = 0; // number of forms of the same tile after this one

    // Whether tables, or grids, are summed in shared memory.
    bool sums_tables() const { return storage.table_words > 0 || storage.entries > 0; }
    bool has_dense_bias() const { return storage.bias_stages > 0 || sums.adds_bias_gradients; }
};

BackwardShape heads_of(const KernelRequest& request) {
    BackwardShape shape{};
    shape.head_dim = request.head_dim;
    shape.head_dim_v = request.head_dim_v;
    shape.are_alone = request.gradients.are_alone;
    return shape;
}
bool shares_keys(const KernelRequest& request) { return heads_of(request).shares_keys(); }

// Returns what is read and summed by a 2-D key index. Nothing if warpgroups share keys, because no
// shared memory is left to stage it.
passes::Index2dReads index_2d_of(const KernelRequest& request) {
    return shares_keys(request) ? passes::Index2dReads{} : request.gradients.index_2d;
}

// Whether MMAs can sum a tile by the 2-D key index: its keys must be whole rows, and a row a whole
// number of MMA steps.
bool sums_by_mma(const passes::Index2dReads& reads) {
    constexpr int kStep = 16;
    return reads.width > 0 && 64 * ::sm90::kConsumers % reads.width == 0 &&
           reads.width % kStep == 0 && reads.sums_are_linear;
}

// Returns the sizes that determine the kernel's shared memory. It reserves the maximum for values
// of a query, because what a program needs there is known only when its text is emitted.
BackwardShape shape_of(const KernelRequest& request, const FusedTile& tile) {
    const BackwardStorage& storage = tile.storage;
    // Tiles of a dense bias leave no shared memory for a 2-D key index.
    const passes::Index2dReads index_2d =
        tile.has_dense_bias() ? passes::Index2dReads{} : index_2d_of(request);
    BackwardShape shape = heads_of(request);
    shape.query_tile = tile.query_tile;
    shape.d_scores_stages = storage.d_scores_stages;
    shape.bias_stages = storage.bias_stages;
    shape.bias_bytes = request.bias.bytes;
    shape.adds_bias_gradients = tile.sums.adds_bias_gradients;
    shape.biases_are_narrow = request.bias.has_narrow_gradient;
    shape.sums_tile = request.gradients.by_distance || index_2d.width != 0 ||
                      storage.table_words > 0 || request.gradients.by_shift ||
                      tile.sums.weighs_distances;
    shape.table_words = storage.table_words + storage.kind_words;
    shape.entry_words =
        storage.entries == 0 ? 0 : (storage.entries + 1) << storage.entry_copy_shift;
    shape.has_weighted_tile =
        tile.sums.weighs_distances || (request.gradients.weighs_tables && storage.table_words > 0);
    shape.term_words = storage.term_words;
    shape.row_bytes = shape.has_weighted_tile ? 0 : shape.most_row_bytes();
    shape.key_width = index_2d.width;
    shape.row_reads = index_2d.by_row;
    shape.column_reads = storage.stages_columns ? index_2d.by_column : 0;
    shape.column_bytes = index_2d.column_bytes;
    shape.column_sums = storage.stages_sums && index_2d.sums_columns ? index_2d.width : 0;
    shape.has_block_mask = request.mask.has_block_mask;
    shape.is_ragged = request.sequences.is_ragged;
    // Persistent blocks pay off if blocks are short, or if some of them have no queries to visit.
    // Without a mask, not with gradients of buffers, whose sums at a block's end take longer then.
    constexpr int kShortHeadDim = 64;
    const bool is_short =
        !request.gradients.any && std::max(request.head_dim, request.head_dim_v) <= kShortHeadDim;
    shape.is_persistent = (request.mask.has_block_mask || request.mask.has_window ||
                           request.sequences.is_ragged || is_short) &&
                          request.gradients.index_2d.width == 0 && shape.can_be_persistent();
    return shape;
}

bool fits(const KernelRequest& request, const BackwardShape& shape) {
    return backward_layout(shape).end <= shared_memory_limit(request.arch);
}

// Returns the shape with shared memory in which the block's warps combine their sums by query; the
// shape itself if these do not all fit.
BackwardShape with_query_sums(const KernelRequest& request, const BackwardShape& shape) {
    BackwardShape gathering = shape;
    gathering.query_sums = request.gradients.by_query;
    return !shape.shares_keys() && fits(request, gathering) ? gathering : shape;
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
bool writes_scores_once(const KernelRequest& request) {
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

// Returns the accumulators of a thread: two tiles of scores, dk and dv.
int accumulators_of(const KernelRequest& request, const FusedTile& tile) {
    const int of_inputs =
        (padded_columns(request.head_dim) + padded_columns(request.head_dim_v)) / 2;
    return tile.query_tile + (request.gradients.are_alone ? 0 : of_inputs);
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
    // - With a derivative of each score, P would fit in 16 bits only.
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
         request.derivative.uses_score || computes_from_rows ||
         request.gradients.partials_are_wide ||
         (request.work.is_large && writes_scores_once(request)) || request.gradients.by_distance ||
         request.gradients.by_table || request.gradients.grid_places > 0 ||
         request.gradients.by_shift || request.gradients.weighs_distances))
        return false;
    return accumulators_of(request, tile) <= kMostAccumulators &&
           fits(request, shape_of(request, tile));
}

// Returns the best tile that copies dense biases or adds their gradients; nothing if none fits.
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
        // Warps that add from the tile of dS release it one tile later than others do.
        const bool reads_tile = request.bias.adds_gradients && request.bias.has_narrow_gradient;
        if (reads_tile && stages.of_d_scores == 1) continue;
        if (tile.has_dense_bias() && suits(request, tile)) return tile;
    }
    return {};
}

// Returns the tile with as much memory for sums of tables as fits, or nothing. multiplies_kinds:
// one by kinds is multiplied beside others, which takes memory of its own.
std::optional<FusedTile> with_tables(const KernelRequest& request, FusedTile tile,
                                     bool multiplies_kinds, bool adds_biases_beside) {
    tile.sums.sums_tables = true;
    tile.sums.adds_biases_beside = adds_biases_beside;
    tile.storage.kind_words = multiplies_kinds ? ::sm90::kMostKindWords : 0;
    // Tiles of weighted gradients have two stages; where there is no room, dS has one.
    const int fewest_stages = request.gradients.weighs_tables ? 1 : 2;
    for (const int words : {2048, 1024, 512})
        for (int stages = 2; stages >= fewest_stages; --stages) {
            tile.storage.table_words = words;
            tile.storage.d_scores_stages = stages;
            if (fits(request, shape_of(request, tile))) return tile;
        }
    return std::nullopt;
}

// Returns the tile whose elements are added to copies of all entries, as many copies as there is
// room for, up to one for each lane; nothing if there is no room.
std::optional<FusedTile> with_entries(const KernelRequest& request, FusedTile tile) {
    constexpr int kMostShift = 5, kMostWords = 1 << 16; // 16 bits number an entry
    tile.sums.sums_tables = true;
    tile.storage.entries = request.gradients.entries_of_elements;
    for (int shift = kMostShift; shift >= 0; --shift) {
        tile.storage.entry_copy_shift = shift;
        if (tile.storage.entries < kMostWords && fits(request, shape_of(request, tile)))
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
    for (const int stages : {2, 1}) {
        tile.storage.d_scores_stages = stages;
        if (fits(request, shape_of(request, tile))) return tile;
    }
    return std::nullopt;
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
// are compiled, would be generic if this way spills much.
bool may_have_entries(const KernelRequest& request) {
    const BufferGradients& gradients = request.gradients;
    return gradients.entries_of_elements > 0 && !shares_keys(request) &&
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

// Returns the tiles to try, best first. Reading columns of a 2-D key index from memory costs more
// than smaller tiles do, and so do sums without MMAs, or a slower way to sum tables. Each tile is
// followed by its forms that save registers, each slower than the one before it; only by the last
// of them where a slower way follows, so that such a program has two compiles more at most.
std::vector<FusedTile> fused_tiles(const KernelRequest& request) {
    std::vector<FusedTile> tiles;
    const auto add = [&](FusedTile tile) {
        FusedTile keeping = tile;
        keeping.storage.term_words = request.gradients.term_words;
        if (fits(request, shape_of(request, keeping))) tile = keeping;
        std::vector<RegisterForm> forms = register_forms(request);
        if (tile.has_slower_way && forms.size() > 2)
            forms.erase(forms.begin() + 1, forms.end() - 1);
        for (std::size_t i = 0; i < forms.size(); ++i) {
            tile.form = forms[i];
            tile.saving_forms = static_cast<int>(forms.size() - 1 - i);
            tiles.push_back(tile);
        }
    };
    if (const auto tile = bias_tile_of(request)) add(*tile);
    std::vector<FusedTile> slower; // ways to sum tables
    const passes::Index2dReads index_2d = index_2d_of(request);
    for (const bool stages_columns : {true, false}) {
        if (stages_columns && index_2d.by_column == 0) continue;
        for (const bool stages_sums : {true, false}) {
            if (stages_sums && !sums_by_mma(index_2d)) continue;
            for (const int query_tile : {2 * kRowBlock, kRowBlock})
                if (const FusedTile tile{
                        .query_tile = query_tile,
                        .storage = {.stages_columns = stages_columns, .stages_sums = stages_sums}};
                    suits(request, tile)) {
                    const std::vector<FusedTile> ways = ways_to_sum(request, tile);
                    add(ways.front());
                    slower.insert(slower.end(), ways.begin() + 1, ways.end());
                }
        }
    }
    std::ranges::stable_sort(slower, {}, &FusedTile::way_to_sum);
    std::ranges::for_each(slower, add);
    return tiles;
}

// Returns the configuration of tile all[at] of the fused kernel.
KernelConfig fused(const KernelRequest& request, const std::vector<FusedTile>& all,
                   std::size_t at) {
    const FusedTile& tile = all[at];
    KernelConfig config;
    config.kind = KernelKind::backward_fused;
    config.family = kName;
    const BackwardShape shape = with_query_sums(request, shape_of(request, tile));
    const bool shares = shape.shares_keys();
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
    config.form = {static_cast<int>(tile.form), !shares && writes_scores_once(request)};
    config.gradients_are_alone = request.gradients.are_alone;
    config.sums = tile.sums;
    config.sums.key_width = shape.key_width;
    config.sums.sums_shifts = request.gradients.by_shift;
    config.storage = tile.storage;
    config.storage.query_sums = shape.query_sums;
    config.sum_elements = elements_at_once(request, tile);
    config.has_block_mask = request.mask.has_block_mask;
    const bool is_last = at + 1 == all.size();
    // A few spilled words cost some percent, and the generic kernel has half the speed, unless
    // elements are added in memory one by one and nothing is summed on chip.
    const bool adds_elements = (request.gradients.by_element || request.gradients.by_table ||
                                request.gradients.grid_places > 0) &&
                               !tile.sums_tables() && shape.key_width == 0;
    // Limits in bytes. A kernel that spills little is as fast in a form that saves registers. One
    // that spills more is faster with smaller tiles or, with kSavableOfElements, as the generic
    // kernel.
    constexpr int kSavable = 128, kSavableOfElements = 64;
    SpillLimits& spills = config.spills;
    spills.saving_forms = tile.saving_forms;
    const bool comes_again = spills.saving_forms > 0;
    const std::size_t next = at + static_cast<std::size_t>(spills.saving_forms) + 1;
    const bool has_smaller = next < all.size() && all[next].way_to_sum == tile.way_to_sum;
    spills.savable = adds_elements                           ? kSavableOfElements
                     : has_smaller && !tile.has_dense_bias() ? kSavable
                                                             : std::numeric_limits<int>::max();
    // In bytes; in all programs that were tried, the warps beside the MMAs spilled at most 24.
    constexpr int kMostBeside = 32;
    const bool precedes_beside = all.size() > at + 1 && tile.form == RegisterForm::keeps_all &&
                                 all[at + 1].form == RegisterForm::saves_beside;
    spills.beside = precedes_beside && spills.saving_forms > 1 && request.has_score_mod
                        ? kMostBeside
                        : std::numeric_limits<int>::max();
    // The bytes that a kernel may spill and is kept: those of the first row that holds.
    struct Tolerance {
        bool holds;
        int bytes;
    };
    const bool is_first = at == 0 || all[at - 1].saving_forms == 0; // of a tile's forms
    const Tolerance tolerances[] = {
        // What waits in registers for the loops over terms spills in every form, and most in those
        // that save registers. The generic kernel adds each element's part of each term to memory.
        {request.gradients.by_terms, std::numeric_limits<int>::max()},
        // The computation of an element takes far longer.
        {request.work.is_long && !is_last, kSpillsOfLong},
        // It takes longer, and forms seldom help.
        {request.work.is_large && config.form.writes_scores_once, 64},
        // Warps that sum tables or shifted reads spill, which no form avoids.
        {is_first && (tile.sums_tables() || tile.sums.weighs_distances), 128},
        {is_first && request.gradients.by_shift, 160},
        // What forms that save registers compute again costs more than a few words that are stored
        // once and read in each tile, but for those of warps that copy dense biases.
        {is_first && comes_again && !tile.has_dense_bias() && !adds_elements, 16},
        // Another form, or the generic kernel, is as fast.
        {comes_again || adds_elements, 0},
        // The generic kernel, which follows, takes three times as long.
        {is_last, 640},
        // So do additions and reads element by element.
        {tile.has_dense_bias() || shape.key_width != 0 || tile.sums_tables() ||
             tile.sums.weighs_distances,
         256},
        // Smaller tiles follow.
        {true, 128}};
    spills.tolerated = std::ranges::find_if(tolerances, &Tolerance::holds)->bytes;
    config.reason = "wgmma, ";
    if (request.gradients.are_alone)
        config.reason += "gradients of buffers alone";
    else
        config.reason +=
            formatted("dk and dv of a tile of keys, dq by {}",
                      shares || tile.sums.adds_bias_gradients ? "additions from registers"
                                                              : "TMA reductions");
    if (tile.sums.adds_bias_gradients) config.reason += ", tiles of a dense bias's gradient";
    if (request.deterministic) config.reason += ", in the order of keys";
    if (request.gradients.by_shift) config.reason += ", gradients of shifted reads by tiles";
    if (tile.sums.sums_grids)
        config.reason += ", gradients of grids by distance in shared memory";
    else if (tile.storage.entries > 0)
        config.reason += formatted(", gradients of tables in shared memory, {} of each of {} "
                                   "entries, added to by the threads that have dS",
                                   tile.storage.entry_copy_shift == 0
                                       ? "one copy"
                                       : formatted("{} copies", 1 << tile.storage.entry_copy_shift),
                                   tile.storage.entries);
    else if (tile.sums.sums_tables)
        config.reason += request.gradients.weighs_tables
                             ? ", gradients of tables in shared memory, from tiles beside dS"
                             : ", gradients of tables in shared memory";
    if (tile.sums.weighs_distances) config.reason += ", gradients by distance from tiles beside dS";
    if (request.gradients.by_terms)
        config.reason += tile.storage.term_words > 0 ? ", gradients of terms in shared memory"
                                                     : ", gradients of terms once a tile";
    if (config.sum_elements != 0 && !request.gradients.by_terms)
        config.reason += formatted(", sums of {} elements at once", config.sum_elements);
    if (shape.key_width != 0)
        config.reason += formatted(", a 2-D key index of {} columns", shape.key_width);
    if (tile.storage.bias_stages > 0) config.reason += "; biases through shared memory";
    if (at + static_cast<std::size_t>(tile.saving_forms) >= register_forms(request).size())
        config.reason += tile.way_to_sum > 0
                             ? "; faster sums of tables spilled registers"
                             : "; larger tiles spilled registers or serialised products";
    if (tile.form == RegisterForm::subtracts_apart)
        config.reason += "; saves registers, references of large scores are subtracted apart";
    else if (tile.form != RegisterForm::keeps_all)
        config.reason += formatted("; saves registers in {} steps", config.form.saves_registers);
    return config;
}

constexpr int kWarpsBeside = 4; // of kernels that run before or after the fused one

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

KernelConfig delta_kernel() {
    return {.kind = KernelKind::delta,
            .family = kName,
            .template_path = "backward_delta_sm90.cu",
            .entry = "flexc_backward_delta_sm90",
            .block = {.query_tile = kPaddedRows, .warps = kWarpsBeside},
            .reason = "row sums of d_out * o, and zeros for dq"};
}

KernelConfig convert_kernel(int head_dim) {
    constexpr int kBarrierBytes = 16; // and a value that one thread passes to the others
    return {.kind = KernelKind::convert,
            .family = kName,
            .template_path = "backward_convert_sm90.cu",
            .entry = "flexc_backward_convert_sm90",
            .block = {.query_tile = kRowBlock,
                      .warps = kWarpsBeside,
                      .shared_bytes = kRowBlock * head_dim * 4 + kBarrierBytes},
            .reason = "dq from its accumulator"};
}

// Tiles of these two are distances, one for each thread.
KernelConfig expand_kernel() {
    return {.kind = KernelKind::expand,
            .family = kName,
            .template_path = "backward_expand_sm90.cu",
            .entry = "flexc_backward_expand_sm90",
            .block = {.key_tile = kPaddedRows, .warps = kWarpsBeside},
            .reason = "values that use q_idx - kv_idx, one for each distance"};
}

KernelConfig fold_kernel(const passes::TileSums& of_main) {
    KernelConfig config = {
        .kind = KernelKind::fold,
        .family = kName,
        .template_path = "backward_fold_sm90.cu",
        .entry = "flexc_backward_fold_sm90",
        .block = {.key_tile = kPaddedRows, .warps = kWarpsBeside},
        .reason = "gradients through values that use q_idx - kv_idx, from sums over diagonals"};
    config.sums.sums_grids = of_main.sums_grids;
    config.sums.weighs_distances = of_main.weighs_distances;
    return config;
}

bool shares_keys_between_warpgroups(const KernelRequest& request) { return shares_keys(request); }

std::vector<KernelConfig> backward_candidates(const KernelRequest& request) {
    std::vector<KernelConfig> candidates;
    const auto add_tiles = [&](const KernelRequest& of) {
        const std::vector<FusedTile> all = fused_tiles(of);
        for (std::size_t at = 0; at < all.size(); ++at)
            candidates.push_back(fused(of, all, at));
    };
    add_tiles(request);
    if (request.sums.count != 0 && !request.gradients.by_terms) {
        // If these spill too much, each element has loops of its own.
        KernelRequest one_by_one = request;
        one_by_one.sums = {};
        add_tiles(one_by_one);
    }
    return candidates;
}

} // namespace flexc::plan::sm90
