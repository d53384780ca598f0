#include "plan/program.h"

#include <algorithm>
#include <utility>

#include "passes/aligned_table.h"
#include "passes/dense_bias.h"
#include "passes/gradient_sum.h"
#include "passes/shared_value.h"
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
    if (passes::sums_by(mod, passes::GradientSum::distance)) return 0;
    return bytes_of_read(mod, passes::dense_bias_of_score(mod));
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

} // namespace

Program::Program(passes::Mod mod, CompileOptions options, Target target)
    : mod_(std::move(mod)), options_(std::move(options)), target_(std::move(target)),
      decomposed_(passes::decompose_score(mod_)),
      // Kernels that copy dense biases cannot follow block masks.
      decomposed_with_tables_(
          passes::decompose_score_with_tables(mod_, !needs_block_mask_of(mod_))),
      decomposed_with_aligned_tables_(passes::decompose_score_with_aligned_tables(mod_)),
      decomposed_with_shifts_(with_ever_fewer_shifts(mod_)),
      decomposed_with_kinds_(passes::decompose_score_with_kinds(mod_)),
      key_index_2d_(passes::key_index_2d(mod_, decomposed_.parts)),
      needs_block_mask_(needs_block_mask_of(mod_)) {
    if (key_index_2d_.width != 0)
        decomposed_by_index_2d_ = passes::decompose_score(mod_, key_index_2d_.width);
    const KernelRequest common = common_request();
    forward_ = forward_request(common);
    backward_ = backward_request(common);
}

KernelRequest Program::common_request() const {
    KernelRequest request;
    request.arch = target_.number;
    request.dtype = options_.dtype;
    request.head_dim = options_.head_dim;
    request.head_dim_v = options_.head_dim_v;
    request.kv_dtype = options_.kv_dtype;
    const support::KeyLayout& keys = support::key_layout(options_.key_layout);
    request.has_entry_scales = options_.kv_dtype && !keys.is_in_order;
    request.has_score_mod = mod_.program.graph[mod_.score].op != ir::Op::score;
    request.reports_out_of_range = options_.report_out_of_range;
    request.has_window = !mod_.band.low.empty() && !mod_.band.high.empty();
    request.has_own_instructions = target_.has_own_instructions;
    request.deterministic = options_.deterministic;
    request.has_block_mask = needs_block_mask_;
    request.is_ragged =
        options_.query_layout == Layout::ragged && options_.key_layout == Layout::ragged;
    if (options_.query_layout == Layout::ragged) request.scattered_in = keys.things;
    request.score_work = score_work(mod_, options_.dtype == DType::bf16 ? passes::Precision::rough
                                                                        : passes::Precision::fast);
    request.shared_value = passes::shared_value(mod_);
    return request;
}

KernelRequest Program::forward_request(KernelRequest request) const {
    request.kind = KernelKind::forward;
    std::vector<ir::NodeId> forward_roots = {mod_.score};
    request.read_instructions = read_instructions(mod_, forward_roots);
    if (!mod_.band.exact) forward_roots.push_back(mod_.mask);
    request.element_instructions = element_instructions(mod_, forward_roots);
    request.is_long = is_long(mod_, forward_roots);
    request.bias_bytes = bytes_of_read(decomposed_.mod, decomposed_.parts.bias_read);
    request.key_index_2d = key_index_2d_;
    request.tabulated = passes::tabulated_values(decomposed_);
    request.multiplies_key_addend =
        passes::multiplies_key_addend(decomposed_.mod, decomposed_.parts);
    request.row_key_products = static_cast<int>(decomposed_.parts.products.size());
    request.adds_keys_alone = passes::adds_keys_alone(decomposed_.mod, decomposed_.parts);
    request.can_start_with_distances =
        passes::can_start_with_distances(decomposed_.mod.program.graph, decomposed_.parts);
    request.can_multiply_slope = passes::can_multiply_slope(decomposed_.mod, decomposed_.parts);
    request.adds_by_position = passes::adds_by_position(decomposed_.mod, decomposed_.parts);
    request.beside_bias = passes::beside_elements(decomposed_);
    if (decomposed_by_index_2d_)
        request.tabulated_by_index_2d = passes::tabulated_values(*decomposed_by_index_2d_);
    for (const passes::StagedTable& table : decomposed_with_tables_.parts.staged.tables)
        request.table_entries.push_back(table.entries);
    const passes::ScoreParts& with_tables = decomposed_with_tables_.parts;
    request.bias_bytes_with_tables =
        bytes_of_read(decomposed_with_tables_.mod, with_tables.bias_read);
    request.copies_table_indices = with_tables.bias_read != decomposed_.parts.bias_read;
    request.computes_table_indices = std::ranges::any_of(
        decomposed_with_tables_.parts.staged.tables,
        [](const passes::StagedTable& table) { return table.split.parts.rest != ir::kNoNode; });
    request.tabulated_with_tables = passes::tabulated_values(decomposed_with_tables_);
    // With a block mask, whose next tile is not known, accumulators do not start with tables.
    if (const auto beside = passes::beside_elements(decomposed_with_aligned_tables_);
        !needs_block_mask_ || !beside.any())
        request.beside_aligned_tables = beside;
    request.starts_with_tables =
        !needs_block_mask_ &&
        passes::starts_with_tables(decomposed_with_tables_.mod.program.graph, with_tables);
    const bool hides_by_band =
        mod_.band.exact || mod_.program.graph[mod_.mask].op == ir::Op::const_bool;
    request.aligned_tiles = aligned_tiles(decomposed_with_aligned_tables_,
                                          request.beside_aligned_tables.starts && hides_by_band);
    request.tabulated_with_aligned_tables =
        passes::tabulated_values(decomposed_with_aligned_tables_);
    for (const passes::DecomposedMod& with_shifts : decomposed_with_shifts_) {
        ShiftedTiles& shifts = request.shifts.emplace_back();
        for (const passes::ShiftedRead& read : with_shifts.parts.shifted)
            shifts.tiles.push_back({read.by_key, bytes_of_read(with_shifts.mod, read.read)});
        shifts.have_ends = passes::have_ends(with_shifts.parts.shifted);
        shifts.tabulated = passes::tabulated_values(with_shifts);
        shifts.beside = passes::beside_elements(with_shifts);
    }
    const passes::ScoreParts& with_kinds = decomposed_with_kinds_.parts;
    request.key_kinds = with_kinds.kinds.count;
    request.kinds_are_of_pairs = with_kinds.kinds.are_of_pairs;
    request.adds_kinds_alone =
        passes::are_products(decomposed_with_kinds_.mod.program.graph, with_kinds);
    request.tabulated_with_kinds = passes::tabulated_values(decomposed_with_kinds_);
    return request;
}

KernelRequest Program::backward_request(KernelRequest request) const {
    using passes::GradientSum;
    request.kind = KernelKind::backward_fused;
    if (mod_.d_score == ir::kNoNode) return request;
    request.bias_bytes = backward_bias_bytes(mod_);
    request.adds_bias_gradients = passes::sums_by(mod_, GradientSum::dense_bias);
    request.biases_are_of_scores = passes::are_biases_of_scores(mod_);
    request.biases_are_narrow = passes::are_biases_narrow(mod_);
    request.sums_tables = passes::sums_tables(mod_);
    const bool sums_grids = passes::sums_grids(mod_);
    request.grid_places = sums_grids ? static_cast<int>(mod_.digit_places.size()) : 0;
    request.sums_shifts = passes::sums_shifts(mod_);
    if (request.sums_shifts || request.sums_tables || sums_grids) {
        // The warps that copy biases and add tiles are busy with sums that elements would wait for.
        request.bias_bytes = 0;
        request.adds_bias_gradients = false;
    }
    request.adds_elements = passes::sums_by(mod_, GradientSum::element, passes::fused_sums(mod_));
    request.sums_distances = passes::sums_by(mod_, GradientSum::distance);
    request.query_sums = passes::count_sums_by(mod_, GradientSum::query);
    request.few_entries = passes::count_few_entries(mod_);
    request.sums_batches = passes::sums_by(mod_, GradientSum::batch, {.sums_batches = true});
    request.adds_many_entries =
        std::ranges::any_of(mod_.gradients, [&](const passes::ReadGradient& gradient) {
            return mod_.place[gradient.read] > passes::Place::head && !gradient.is_of_few_entries;
        });
    request.derivative_uses_score = mod_.dependence[mod_.d_score].has(analysis::Dependence::score);
    request.has_gradients = !mod_.gradients.empty();
    request.gradients_vary =
        std::ranges::any_of(mod_.gradients, [&](const passes::ReadGradient& gradient) {
            return mod_.place[gradient.read] > passes::Place::head && !gradient.is_of_row;
        });
    request.folds_derivative = request.derivative_uses_score && mod_.gradients.empty();
    request.index_2d_reads = passes::index_2d_reads(mod_);
    std::vector<ir::NodeId> roots = {mod_.score, mod_.d_score};
    for (const passes::ReadGradient& gradient : mod_.gradients) {
        roots.push_back(gradient.partial);
        if (mod_.dependence[gradient.partial].has(analysis::Dependence::score))
            request.partials_use_score = true;
        if (computes_wide_integers(mod_, gradient.partial)) request.partials_are_wide = true;
    }
    request.read_instructions = read_instructions(mod_, roots);
    if (!mod_.band.exact) roots.push_back(mod_.mask);
    request.element_instructions = element_instructions(mod_, roots);
    request.row_instructions = row_instructions(mod_, roots);
    request.is_long = is_long(mod_, roots);
    request.copied_instructions = copied_instructions(mod_, request.element_instructions);
    request.is_large = is_large(mod_);
    request.computes_rows = computes_at(passes::Place::row, mod_, roots);
    request.computes_columns = computes_at(passes::Place::column, mod_, roots);
    return request;
}

const passes::DecomposedMod& Program::decomposed(const KernelConfig& config) const {
    switch (config.decomposition) {
    case Decomposition::with_aligned_tables: return decomposed_with_aligned_tables_;
    case Decomposition::with_tables: return decomposed_with_tables_;
    case Decomposition::with_shifts: return *(decomposed_with_shifts_.end() - config.shifted_reads);
    case Decomposition::by_kinds: return decomposed_with_kinds_;
    case Decomposition::by_index_2d: return *decomposed_by_index_2d_;
    case Decomposition::plain:
    case Decomposition::none: break;
    }
    return decomposed_;
}

KernelRequest Program::request(KernelKind kind) const {
    KernelRequest request = kind == KernelKind::forward ? forward_ : backward_;
    request.kind = kind;
    return request;
}

} // namespace flexc::plan
