#include "plan/program.h"

#include <algorithm>
#include <utility>

#include "passes/aligned_table.h"
#include "passes/dense_bias.h"
#include "passes/distance_value.h"
#include "passes/element_sums.h"
#include "passes/gradient_sum.h"
#include "passes/shared_value.h"
#include "passes/table_gradient.h"
#include "passes/term_gradient.h"
#include "plan/work.h"
#include "support/key_layout.h"

namespace flexc::plan {

namespace {

// Whether kernels visit tiles by a block mask. Not if reads outside of buffers are reported,
// because every element must then be visited.
bool needs_block_mask_of(const passes::Mod& mod) {
    return mod.out_of_range == ir::kNoNode && (mod.mask_tier == analysis::MaskTier::tile_tests ||
                                               mod.mask_tier == analysis::MaskTier::exhaustive);
}

int bytes_of_read(const passes::Mod& mod, ir::NodeId read) {
    if (read == ir::kNoNode) return 0;
    return static_cast<int>(size_of(mod.program.buffers[mod.program.graph[read].symbol].dtype));
}

bool computes_at(passes::Place place, const passes::Mod& mod,
                 const std::vector<ir::NodeId>& roots) {
    const ir::Graph& graph = mod.program.graph;
    return std::ranges::any_of(ir::reachable(graph, roots), [&](ir::NodeId id) {
        const ir::Op op = graph[id].op;
        return mod.place[id] == place && (op == ir::Op::read || !ir::info(op).is_leaf());
    });
}

// Returns the bytes of an element of the dense bias that a fused backward copies; 0 for none.
int backward_bias_bytes(const passes::Mod& mod) {
    // The warps that would copy it are busy with sums over diagonals.
    if (passes::sums_by(mod, passes::GradientSum::distance) || passes::weighs_distances(mod))
        return 0;
    return bytes_of_read(mod, passes::dense_bias_of_score(mod));
}

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

ElementSums element_sums(const passes::Mod& mod, const std::vector<ir::NodeId>& ids) {
    if (is_long(mod, ids)) return {};
    ElementSums sums{.count = static_cast<int>(ids.size()),
                     .carried = static_cast<int>(passes::carried_by_sums(mod, ids).size())};
    for (const ir::NodeId id : ir::reachable(mod.program.graph, ids)) {
        if (mod.program.graph[id].op != ir::Op::read || mod.counters[id] == ir::kNoNode) continue;
        const passes::Place place = passes::place_of_term(mod, id);
        sums.reads_of_queries += place == passes::Place::row;
        sums.reads_of_keys += place == passes::Place::column;
        sums.reads_of_elements += place == passes::Place::element;
    }
    return sums;
}

ElementSums element_sums(const passes::DecomposedMod& decomposed) {
    return element_sums(decomposed.mod, passes::element_sums(decomposed.mod, decomposed.parts));
}

// Sums of what a backward's elements compute together.
ElementSums joint_sums(const passes::Mod& mod) {
    std::vector<ir::NodeId> roots = {mod.score, mod.d_score};
    for (const passes::ReadGradient& gradient : mod.gradients) {
        const bool is_of_diagonals =
            !gradient.is_weighted && passes::gradient_sum(mod, gradient, passes::fused_sums(mod)) ==
                                         passes::GradientSum::distance;
        if (mod.counters[gradient.read] == ir::kNoNode && !is_of_diagonals)
            roots.push_back(gradient.partial);
    }
    return element_sums(mod, passes::element_sums(mod, roots, passes::distance_values(mod)));
}

PlainTerms plain_terms(const passes::DecomposedMod& decomposed) {
    const auto& [mod, parts] = decomposed;
    const ir::Graph& graph = mod.program.graph;
    return {.bias_bytes = bytes_of_read(mod, parts.bias_read),
            .tabulated = passes::tabulated_values(decomposed),
            .sums = element_sums(decomposed),
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
            .tabulated = passes::tabulated_values(decomposed)};
}

// Estimates the instructions of what elements compute themselves, because it is neither tabulated
// nor added by row, key or distance.
int own_instructions(const passes::DecomposedMod& decomposed) {
    const auto& [mod, parts] = decomposed;
    std::vector<ir::NodeId> roots;
    if (const ir::NodeId root = passes::of_elements(mod, parts); root != ir::kNoNode)
        roots.push_back(root);
    if (!mod.band.exact) roots.push_back(mod.mask);
    std::vector<ir::NodeId> tabulated = parts.key_values;
    tabulated.insert(tabulated.end(), parts.distance_values.begin(), parts.distance_values.end());
    return element_instructions(mod, roots, tabulated);
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
        terms.computes_indices |= table.split.parts.rest != ir::kNoNode;
    }
    terms.can_start = !has_block_mask && passes::starts_with_tables(mod.program.graph, parts);
    terms.bias_bytes = bytes_of_read(mod, parts.bias_read);
    terms.copies_indices = parts.bias_read != plain_bias;
    terms.element_instructions = own_instructions(decomposed);
    terms.element_reads = own_reads(decomposed);
    terms.tabulated = passes::tabulated_values(decomposed);
    terms.sums = element_sums(decomposed);
    return terms;
}

// hides_by_band: elements are hidden by a band alone, if at all.
AlignedTableTerms aligned_table_terms(const passes::DecomposedMod& decomposed, bool hides_by_band,
                                      bool has_block_mask) {
    AlignedTableTerms terms{.beside = passes::beside_elements(decomposed),
                            .tabulated = passes::tabulated_values(decomposed),
                            .sums = element_sums(decomposed)};
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
    terms.sums = element_sums(decomposed);
    return terms;
}

DenseBias dense_bias(const passes::Mod& mod) {
    DenseBias bias{.bytes = backward_bias_bytes(mod),
                   .adds_gradients = passes::sums_by(mod, passes::GradientSum::dense_bias),
                   .has_gradient_of_score = passes::are_biases_of_scores(mod),
                   .has_narrow_gradient = passes::are_biases_narrow(mod)};
    if (passes::sums_shifts(mod) || passes::sums_tables(mod) || passes::sums_grids(mod)) {
        // The warps that copy biases and add tiles are busy with sums that elements would wait for.
        bias.bytes = 0;
        bias.adds_gradients = false;
    }
    return bias;
}

BufferGradients buffer_gradients(const passes::Mod& mod) {
    using passes::GradientSum;
    BufferGradients gradients;
    gradients.any = !mod.gradients.empty();
    gradients.by_element = passes::sums_by(mod, GradientSum::element, passes::fused_sums(mod));
    gradients.by_distance = passes::sums_by(mod, GradientSum::distance);
    gradients.by_table = passes::sums_tables(mod);
    gradients.weighs_tables = gradients.by_table && passes::weighs_tables(mod);
    gradients.weighs_distances = passes::weighs_distances(mod);
    gradients.sums_kinds_beside = gradients.by_table && passes::sums_kinds_beside(mod);
    gradients.adds_biases_beside =
        passes::sums_by(mod, GradientSum::bias_beside, passes::fused_sums(mod));
    gradients.entries_of_elements = passes::entries_of_elements(mod);
    gradients.has_sums_beside_entries = passes::has_sums_beside_entries(mod);
    gradients.by_shift = passes::sums_shifts(mod);
    gradients.by_batch = passes::sums_by(mod, GradientSum::batch, {.sums_batches = true});
    gradients.by_query = passes::count_sums_by(mod, GradientSum::query);
    gradients.by_terms = passes::sums_by(mod, GradientSum::terms);
    gradients.term_words = passes::term_words(mod);
    if (passes::sums_grids(mod)) gradients.grid_places = static_cast<int>(mod.digit_places.size());
    gradients.few_entries = passes::count_few_entries(mod);
    gradients.weighs_entries = passes::weighs_entries(mod);
    for (const passes::ReadGradient& gradient : mod.gradients) {
        const bool varies = mod.place[gradient.read] > passes::Place::head;
        gradients.vary |= varies && !gradient.is_of_row;
        gradients.adds_many_entries |= varies && gradient.entry_sum == passes::EntrySum::none;
        gradients.partials_use_score |=
            mod.dependence[gradient.partial].has(analysis::Dependence::score);
        gradients.partials_are_wide |= computes_wide_integers(mod, gradient.partial);
    }
    gradients.index_2d = passes::index_2d_reads(mod);
    return gradients;
}

} // namespace

Program::Program(passes::Mod mod, CompileOptions options, Target target)
    : mod_(std::move(mod)), options_(std::move(options)), target_(std::move(target)),
      decomposed_(passes::decompose_score(mod_, 0, most_by_key(options_))),
      // Kernels that copy dense biases cannot follow block masks.
      decomposed_with_tables_(
          passes::decompose_score_with_tables(mod_, !needs_block_mask_of(mod_))),
      decomposed_with_aligned_tables_(passes::decompose_score_with_aligned_tables(mod_)),
      decomposed_with_shifts_(with_ever_fewer_shifts(mod_)),
      decomposed_with_kinds_(passes::decompose_score_with_kinds(mod_)),
      key_index_2d_(passes::key_index_2d(mod_, decomposed_.parts)),
      needs_block_mask_(needs_block_mask_of(mod_)) {
    if (key_index_2d_.width != 0)
        decomposed_by_index_2d_ =
            passes::decompose_score(mod_, key_index_2d_.width, passes::kFewByKey);
    const KernelRequest common = common_request();
    forward_ = forward_request(common);
    backward_ = backward_request(common);
}

KernelRequest Program::common_request() const {
    KernelRequest request;
    request.arch = target_.number;
    request.has_own_instructions = target_.has_own_instructions;
    request.dtype = options_.dtype;
    request.kv_dtype = options_.kv_dtype;
    request.head_dim = options_.head_dim;
    request.head_dim_v = options_.head_dim_v;
    request.has_score_mod = mod_.program.graph[mod_.score].op != ir::Op::score;
    const support::KeyLayout& keys = support::key_layout(options_.key_layout);
    request.sequences.is_ragged =
        options_.query_layout == Layout::ragged && options_.key_layout == Layout::ragged;
    if (options_.query_layout == Layout::ragged) request.sequences.scattered_in = keys.things;
    request.sequences.has_entry_scales = options_.kv_dtype && !keys.is_in_order;
    request.mask.has_block_mask = needs_block_mask_;
    request.mask.has_window = !mod_.band.low.empty() && !mod_.band.high.empty();
    request.work.of_score =
        score_work(mod_, options_.dtype == DType::bf16 ? passes::Precision::rough
                                                       : passes::Precision::flushed);
    request.reports_out_of_range = options_.report_out_of_range;
    request.deterministic = options_.deterministic;
    request.shared_value = passes::shared_value(mod_);
    return request;
}

KernelRequest Program::forward_request(KernelRequest request) const {
    request.kind = KernelKind::forward;
    std::vector<ir::NodeId> roots = {mod_.score};
    request.work.read_instructions = read_instructions(mod_, roots);
    if (!mod_.band.exact) roots.push_back(mod_.mask);
    request.work.element_instructions = element_instructions(mod_, roots);
    request.work.is_long = is_long(mod_, roots);

    ScoreTerms& terms = request.terms;
    terms.plain = plain_terms(decomposed_);
    if (decomposed_by_index_2d_)
        terms.by_index_2d = {.keys = key_index_2d_,
                             .tabulated = passes::tabulated_values(*decomposed_by_index_2d_),
                             .sums = element_sums(*decomposed_by_index_2d_),
                             .element_reads = own_reads(*decomposed_by_index_2d_)};
    terms.by_kinds = kind_terms(decomposed_with_kinds_);
    terms.with_tables =
        table_terms(decomposed_with_tables_, decomposed_.parts.bias_read, needs_block_mask_);
    const bool hides_by_band =
        mod_.band.exact || mod_.program.graph[mod_.mask].op == ir::Op::const_bool;
    terms.with_aligned_tables =
        aligned_table_terms(decomposed_with_aligned_tables_, hides_by_band, needs_block_mask_);
    for (const passes::DecomposedMod& with_shifts : decomposed_with_shifts_)
        terms.with_shifts.push_back(shifted_terms(with_shifts));
    return request;
}

KernelRequest Program::backward_request(KernelRequest request) const {
    request.kind = KernelKind::backward_fused;
    if (mod_.d_score == ir::kNoNode) return request;
    request.sums = joint_sums(mod_);
    request.bias = dense_bias(mod_);
    request.gradients = buffer_gradients(mod_);
    std::vector<ir::NodeId> roots = {mod_.score, mod_.d_score};
    for (const passes::ReadGradient& gradient : mod_.gradients)
        roots.push_back(gradient.partial);
    request.work.read_instructions = read_instructions(mod_, roots);
    if (!mod_.band.exact) roots.push_back(mod_.mask);
    request.work.element_instructions = element_instructions(mod_, roots);
    request.work.row_instructions = row_instructions(mod_, roots);
    request.work.copied_instructions = copied_instructions(mod_, request.work.element_instructions);
    request.work.is_long = is_long(mod_, roots);
    request.work.is_large = is_large(mod_);
    request.work.takes_roots = takes_roots(mod_, roots);
    request.derivative = {.uses_score =
                              mod_.dependence[mod_.d_score].has(analysis::Dependence::score),
                          .is_costly = has_costly_derivative(mod_),
                          .computes_rows = computes_at(passes::Place::row, mod_, roots),
                          .computes_columns = computes_at(passes::Place::column, mod_, roots)};
    return request;
}

const passes::DecomposedMod& Program::decomposed(const Decomposition& how) const {
    using enum Decomposition::Of;
    switch (how.of) {
    case with_aligned_tables: return decomposed_with_aligned_tables_;
    case with_tables: return decomposed_with_tables_;
    case with_shifts: return *(decomposed_with_shifts_.end() - how.shifted_reads);
    case by_kinds: return decomposed_with_kinds_;
    case by_index_2d: return *decomposed_by_index_2d_;
    case plain:
    case none: break;
    }
    return decomposed_;
}

KernelRequest Program::request(KernelKind kind) const {
    KernelRequest request = kind == KernelKind::forward ? forward_ : backward_;
    request.kind = kind;
    return request;
}

} // namespace flexc::plan
