#include "plan/decompositions.h"

#include <algorithm>
#include <utility>

#include "passes/aligned_table.h"
#include "passes/element_sums.h"
#include "plan/element_sums.h"
#include "plan/work.h"

namespace flexc::plan {

namespace {

// Returns the most vectors by key that elements read. Wide outputs leave registers for few.
std::size_t most_by_key(const CompileOptions& options) {
    constexpr int kWidest = 128;
    return std::max(options.head_dim, options.head_dim_v) <= kWidest ? passes::kMostByKey
                                                                     : passes::kFewByKey;
}

std::vector<passes::DecomposedMod> with_ever_fewer_shifts(const passes::Mod& mod) {
    std::vector<passes::DecomposedMod> result;
    std::size_t most = passes::kMostShiftedReads;
    while (most != 0) {
        passes::DecomposedMod with_shifts = passes::decompose_score_with_shifts(mod, most);
        if (with_shifts.parts.shifted.empty()) break;
        most = with_shifts.parts.shifted.size() - 1;
        result.push_back(std::move(with_shifts));
    }
    return result;
}

// Returns the key tiles for which the places in every table are known except for one number per
// tile. may_overlap: if no large tile is aligned, a tile's last keys may be the next one's first.
std::vector<AlignedTile> aligned_tiles(const passes::DecomposedMod& decomposed, bool may_overlap) {
    constexpr int kGroup = 16, kMany = 96, kMost = 128;
    std::vector<AlignedTile> tiles;
    const passes::StagedTables& staged = decomposed.parts.staged;
    if (!decomposed.parts.aligns_tables || staged.tables.empty()) return tiles;
    const auto add = [&](int keys, int step) {
        const bool are_aligned =
            passes::aligned_tables(decomposed.mod, staged, keys, step).has_value();
        if (are_aligned) tiles.push_back({keys, step});
        return are_aligned;
    };
    for (int keys = kGroup; keys <= kMost; keys += kGroup)
        add(keys, keys);
    if (!may_overlap || (!tiles.empty() && tiles.back().keys >= kMany)) return tiles;
    for (int keys = kGroup; keys <= kMost; keys += kGroup)
        for (int step = keys - 1; step > keys - kGroup; --step)
            if (add(keys, step)) break;
    return tiles;
}

ElementSums own_sums(const passes::DecomposedMod& decomposed) {
    return element_sums(decomposed.mod, passes::element_sums(decomposed.mod, decomposed.parts));
}

int bytes_of_read(const passes::Mod& mod, ir::NodeId read) {
    return read == ir::kNoNode ? 0 : static_cast<int>(size_of(mod.program.buffer_of(read).dtype));
}

// Estimates the instructions of these parts of what elements compute themselves, because it is
// neither tabulated nor added by row, key or distance.
int own_instructions(const passes::DecomposedMod& decomposed,
                     const std::vector<ir::NodeId>& roots) {
    const passes::ScoreParts& parts = decomposed.parts;
    std::vector<ir::NodeId> tabulated = parts.key_values;
    tabulated.insert(tabulated.end(), parts.distance_values.begin(), parts.distance_values.end());
    return element_instructions(decomposed.mod, roots, tabulated);
}

std::vector<ir::NodeId> scores_of_elements(const passes::DecomposedMod& decomposed) {
    const ir::NodeId root = passes::of_elements(decomposed.mod, decomposed.parts);
    return root == ir::kNoNode ? std::vector<ir::NodeId>{} : std::vector{root};
}
int score_instructions(const passes::DecomposedMod& decomposed) {
    return own_instructions(decomposed, scores_of_elements(decomposed));
}
// The same with the mask.
int instructions_of_elements(const passes::DecomposedMod& decomposed) {
    const passes::Mod& mod = decomposed.mod;
    std::vector<ir::NodeId> roots = scores_of_elements(decomposed);
    if (!mod.band.exact) roots.push_back(mod.mask);
    return own_instructions(decomposed, roots);
}

PlainTerms plain_terms(const passes::DecomposedMod& decomposed) {
    const auto& [mod, parts] = decomposed;
    const ir::Graph& graph = mod.program.graph;
    return {.bias_bytes = bytes_of_read(mod, parts.bias_read),
            .tabulated = passes::tabulated_values(decomposed),
            .sums = own_sums(decomposed),
            .score_instructions = score_instructions(decomposed),
            .multiplies_key_addend = passes::multiplies_key_addend(mod, parts),
            .adds_keys_alone = passes::adds_keys_alone(mod, parts),
            .adds_by_position = passes::adds_by_position(mod, parts),
            .can_start_with_distances = passes::can_start_with_distances(graph, parts),
            .can_multiply_slope = passes::can_multiply_slope(mod, parts),
            .row_key_products = static_cast<int>(parts.products.size()),
            .beside_bias = passes::beside_elements(decomposed)};
}

KindTerms kind_terms(const passes::DecomposedMod& decomposed) {
    const auto& [mod, parts] = decomposed;
    return {.count = parts.kinds.count,
            .are_of_pairs = parts.kinds.are_of_pairs,
            .are_added_alone = passes::are_products(mod.program.graph, parts),
            .most_bound =
                parts.kinds.bound.empty() ? 0 : static_cast<int>(parts.kinds.bound.front().most),
            .tabulated = passes::tabulated_values(decomposed)};
}

// Returns how many values each element reads from memory itself.
int own_reads(const passes::DecomposedMod& decomposed) {
    const auto& [mod, parts] = decomposed;
    const ir::NodeId root = passes::of_elements(mod, parts);
    if (root == ir::kNoNode) return 0;
    const auto is_elsewhere = [&](ir::NodeId id) {
        return id == parts.bias_read || std::ranges::count(parts.key_values, id) != 0 ||
               std::ranges::count(parts.distance_values, id) != 0 ||
               std::ranges::count(parts.staged.tables, id, &passes::StagedTable::read) != 0;
    };
    int reads = 0;
    ir::visit_from(mod.program.graph, {root}, [&](ir::NodeId id) {
        if (is_elsewhere(id)) return false;
        reads +=
            mod.program.graph[id].op == ir::Op::read && mod.place[id] == passes::Place::element;
        return true;
    });
    return reads;
}

// plain_bias: the read that the plain decomposition copies.
TableTerms table_terms(const passes::DecomposedMod& decomposed, ir::NodeId plain_bias,
                       bool has_block_mask) {
    const auto& [mod, parts] = decomposed;
    TableTerms terms;
    for (const passes::StagedTable& table : parts.staged.tables) {
        terms.entries.push_back(table.entries);
        terms.computes_indices |= table.split.parts.rest != ir::kNoNode || !table.where.empty();
    }
    terms.can_start = !has_block_mask && passes::starts_with_tables(mod.program.graph, parts);
    terms.bias_bytes = bytes_of_read(mod, parts.bias_read);
    terms.copies_indices = parts.bias_read != plain_bias;
    terms.element_instructions = instructions_of_elements(decomposed);
    terms.score_instructions = score_instructions(decomposed);
    terms.element_reads = own_reads(decomposed);
    terms.tabulated = passes::tabulated_values(decomposed);
    terms.sums = own_sums(decomposed);
    return terms;
}

// hides_by_band: elements are hidden by a band alone, if at all.
AlignedTableTerms aligned_table_terms(const passes::DecomposedMod& decomposed, bool hides_by_band,
                                      bool has_block_mask) {
    AlignedTableTerms terms{.beside = passes::beside_elements(decomposed),
                            .tabulated = passes::tabulated_values(decomposed),
                            .sums = own_sums(decomposed),
                            .score_instructions = score_instructions(decomposed)};
    // With a block mask, whose next tile is not known, accumulators do not start with tables.
    if (has_block_mask && terms.beside.any()) terms.beside = {};
    terms.tiles = aligned_tiles(decomposed, terms.beside.starts && hides_by_band);
    return terms;
}

ShiftedTerms shifted_terms(const passes::DecomposedMod& decomposed) {
    const auto& [mod, parts] = decomposed;
    ShiftedTerms terms;
    for (const passes::ShiftedRead& read : parts.shifted)
        terms.tiles.push_back({read.by_key, bytes_of_read(mod, read.read)});
    terms.have_ends = passes::have_ends(parts.shifted);
    terms.tabulated = passes::tabulated_values(decomposed);
    terms.beside = passes::beside_elements(decomposed);
    terms.sums = own_sums(decomposed);
    terms.score_instructions = score_instructions(decomposed);
    return terms;
}

} // namespace

Decompositions::Decompositions(const passes::Mod& mod, const CompileOptions& options,
                               bool has_block_mask)
    : plain_(passes::decompose_score(mod, 0, most_by_key(options))),
      by_kinds_(passes::decompose_score_with_kinds(mod)),
      // Kernels that copy dense biases cannot follow block masks.
      with_tables_(passes::decompose_score_with_tables(mod, !has_block_mask)),
      with_aligned_tables_(passes::decompose_score_with_aligned_tables(mod)),
      with_shifts_(with_ever_fewer_shifts(mod)),
      key_index_2d_(passes::key_index_2d(mod, plain_.parts)) {
    if (key_index_2d_.width != 0)
        by_index_2d_ = passes::decompose_score(mod, key_index_2d_.width, passes::kFewByKey);
}

const passes::DecomposedMod& Decompositions::of(const Decomposition& how) const {
    using enum Decomposition::Of;
    switch (how.of) {
    case with_aligned_tables: return with_aligned_tables_;
    case with_tables: return with_tables_;
    case with_shifts: return *(with_shifts_.end() - how.shifted_reads);
    case by_kinds: return by_kinds_;
    case by_index_2d: return *by_index_2d_;
    case plain:
    case none: break;
    }
    return plain_;
}

ScoreTerms Decompositions::terms(const passes::Mod& mod, bool has_block_mask) const {
    ScoreTerms terms;
    terms.plain = plain_terms(plain_);
    if (by_index_2d_)
        terms.by_index_2d = {.keys = key_index_2d_,
                             .tabulated = passes::tabulated_values(*by_index_2d_),
                             .sums = own_sums(*by_index_2d_),
                             .score_instructions = score_instructions(*by_index_2d_),
                             .element_reads = own_reads(*by_index_2d_)};
    terms.by_kinds = kind_terms(by_kinds_);
    terms.with_tables = table_terms(with_tables_, plain_.parts.bias_read, has_block_mask);
    const bool hides_by_band =
        mod.band.exact || mod.program.graph[mod.mask].op == ir::Op::const_bool;
    terms.with_aligned_tables =
        aligned_table_terms(with_aligned_tables_, hides_by_band, has_block_mask);
    for (const passes::DecomposedMod& with_shifts : with_shifts_)
        terms.with_shifts.push_back(shifted_terms(with_shifts));
    return terms;
}

} // namespace flexc::plan
