#include "plan/target_program.h"

#include <algorithm>
#include <utility>

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

bool computes_at(passes::Place place, const passes::Mod& mod,
                 const std::vector<ir::NodeId>& roots) {
    const ir::Graph& graph = mod.program.graph;
    return std::ranges::any_of(ir::reachable(graph, roots), [&](ir::NodeId id) {
        const ir::Op op = graph[id].op;
        return mod.place[id] == place && (op == ir::Op::read || !ir::info(op).is_leaf());
    });
}

bool reads_at(passes::Place place, const passes::Mod& mod, const std::vector<ir::NodeId>& roots) {
    const ir::Graph& graph = mod.program.graph;
    return std::ranges::any_of(ir::reachable(graph, roots), [&](ir::NodeId id) {
        return mod.place[id] == place && graph[id].op == ir::Op::read;
    });
}

// Returns the bytes of an element of the bias that a fused backward copies; 0 for none.
int backward_bias_bytes(const passes::Mod& mod) {
    // The warps that would copy it are busy with sums over diagonals.
    if (passes::sums_by(mod, passes::GradientSum::distance) || passes::weighs_distances(mod))
        return 0;
    // Its tiles take the memory of a 2-D key index.
    if (mod.shifted_bias.read != ir::kNoNode && passes::index_2d_reads(mod).width != 0) return 0;
    const ir::NodeId bias = passes::copied_bias_of_score(mod);
    return bias == ir::kNoNode ? 0 : static_cast<int>(size_of(mod.program.buffer_of(bias).dtype));
}

// Sums of what a backward's elements compute together.
ElementSums joint_sums(const passes::Mod& mod) {
    const passes::TileSums tile = passes::fused_sums(mod);
    std::vector<ir::NodeId> roots = {mod.score, mod.d_score};
    for (const passes::ReadGradient& gradient : mod.gradients)
        if (passes::elements_have_partial(mod, gradient, tile)) roots.push_back(gradient.partial);
    return element_sums(mod, passes::element_sums(mod, roots, passes::distance_values(mod)));
}

DenseBias dense_bias(const passes::Mod& mod) {
    DenseBias bias{.bytes = backward_bias_bytes(mod),
                   .is_shifted = mod.shifted_bias.read != ir::kNoNode,
                   .is_by_key = mod.shifted_bias.by_key,
                   .adds_gradients = passes::sums_by(mod, passes::GradientSum::dense_bias),
                   .has_gradient_of_score = passes::are_biases_of_scores(mod),
                   .has_narrow_gradient = passes::are_biases_narrow(mod)};
    const bool sums_entries = passes::sums_tables(mod) || passes::sums_grids(mod);
    if (passes::sums_shifts(mod) || sums_entries) {
        // The warps that copy biases and add tiles are busy with sums that elements would wait for.
        // Those of shifted gradients leave a copy to the warp that loads queries.
        if (!bias.is_shifted || sums_entries) bias.bytes = 0;
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
    gradients.term_reads = passes::count_term_reads(mod, passes::terms_by_tile(mod));
    gradients.generic_term_reads =
        passes::count_term_reads(mod, passes::terms_by_generic_tile(mod));
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

TargetProgram::TargetProgram(passes::Mod mod, CompileOptions options, Target target)
    : mod_(std::move(mod)), options_(std::move(options)), target_(std::move(target)),
      needs_block_mask_(needs_block_mask_of(mod_)),
      decompositions_(mod_, options_, needs_block_mask_) {
    const KernelRequest common = common_request();
    forward_ = forward_request(common);
    backward_ = backward_request(common);
}

KernelRequest TargetProgram::common_request() const {
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
    request.mask.has_band = !mod_.band.low.empty() || !mod_.band.high.empty();
    request.mask.has_window = !mod_.band.low.empty() && !mod_.band.high.empty();
    request.work.of_score =
        score_work(mod_, options_.dtype == DType::bf16 ? passes::Precision::rough
                                                       : passes::Precision::flushed);
    request.reports_out_of_range = options_.report_out_of_range;
    request.deterministic = options_.deterministic;
    request.shared_value = passes::shared_value(mod_);
    return request;
}

KernelRequest TargetProgram::forward_request(KernelRequest request) const {
    request.kind = KernelKind::forward;
    std::vector<ir::NodeId> roots = {mod_.score};
    request.work.read_instructions = read_instructions(mod_, roots);
    if (!mod_.band.exact) roots.push_back(mod_.mask);
    request.work.element_instructions = element_instructions(mod_, roots);
    request.work.is_long = is_long(mod_, roots);

    request.terms = decompositions_.terms(mod_, needs_block_mask_);
    return request;
}

KernelRequest TargetProgram::backward_request(KernelRequest request) const {
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
                          .reads_rows = reads_at(passes::Place::row, mod_, roots),
                          .computes_columns = computes_at(passes::Place::column, mod_, roots)};
    return request;
}

KernelRequest TargetProgram::request(KernelKind kind) const {
    KernelRequest request = kind == KernelKind::forward ? forward_ : backward_;
    request.kind = kind;
    return request;
}

} // namespace flexc::plan
