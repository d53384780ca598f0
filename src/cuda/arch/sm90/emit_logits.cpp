#include "cuda/arch/sm90/emit_logits.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>

#include "common/expanded.h"
#include "cuda/emit_dense_bias.h"
#include "cuda/emit_element_sums.h"
#include "cuda/emit_score_parts.h"
#include "cuda/emit_shifted_reads.h"
#include "cuda/emit_staged_tables.h"
#include "cuda/names.h"
#include "cuda/policy.h"
#include "passes/element_sums.h"
#include "plan/arch/sm90/sm90.h"
#include "sm90/score_form.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::kNoNode;
using ir::NodeId;

namespace {

// Whether the mask or the score reads memory by the key; known: apart from these values, which were
// computed before.
bool reads_keys(const passes::Mod& mod, const std::vector<NodeId>& known = {}) {
    const auto reads = [&](NodeId root, const std::vector<NodeId>& leaves) {
        bool found = false;
        ir::visit_from(mod.program.graph, {root}, [&](NodeId id) {
            const bool is_leaf = std::ranges::count(leaves, id) != 0;
            found = found || (!is_leaf && mod.program.graph[id].op == ir::Op::read &&
                              mod.dependence[id].has(analysis::Dependence::kv));
            return !is_leaf && !found;
        });
        return found;
    };
    return reads(mod.score, known) || reads(mod.mask, {});
}

std::vector<NodeId> values_before(const passes::ScoreParts& parts) {
    std::vector<NodeId> values = parts.key_values;
    values.insert(values.end(), parts.distance_values.begin(), parts.distance_values.end());
    return values;
}

// Returns a bound on the absolute value of every logit times log2(e); 0 if no useful bound is
// known.
int exponent_bound(const passes::Mod& mod) {
    constexpr double kUseless = 1e6;
    const double bound = std::ceil(mod.ranges.magnitude[mod.score] * std::numbers::log2e);
    return bound < kUseless ? std::max(1, static_cast<int>(bound)) : 0;
}

// Converts text to a float: values that are computed before the kernel are stored as floats,
// integers by their bits.
std::string as_float(const Layout& layout, NodeId id, const std::string& text) {
    switch (layout.type(id)) {
    case CType::boolean: return text + " ? 1.0f : 0.0f";
    case CType::narrow: return "__int_as_float(" + unbracketed(text) + ")";
    case CType::wide:
    case CType::real: break;
    }
    return text;
}

// Returns the sizes without those that this decomposition of the program does not need.
::sm90::ForwardSizes sizes_of(const plan::sm90::Forward& forward, const passes::ScoreParts& parts) {
    ::sm90::ForwardSizes sizes = forward.sizes;
    if (parts.bias_read == kNoNode) sizes.bias_bytes = 0;
    if (parts.quotient_addend == kNoNode) sizes.index_2d_rows = 0;
    return sizes;
}

::sm90::ScoreForm form_of(const passes::Mod& mod, const passes::ScoreParts& parts,
                          const plan::sm90::Forward& forward) {
    const bool multiplies_key_addend = forward.sizes.multiplies_key_addend;
    const auto has = [](NodeId part) { return part != kNoNode; };
    const bool adds_keys_alone =
        passes::adds_keys_alone(mod, parts) && (multiplies_key_addend || !has(parts.key_addend));
    const bool has_factor =
        adds_keys_alone && !passes::can_divide_by_multiplier(mod.program.graph, parts);
    return {.is_affine = parts.found(),
            .is_product = adds_keys_alone || forward.sizes.starts_with_distances ||
                          (forward.sizes.multiplies_slope && !has(parts.element_addend)) ||
                          passes::are_products(mod.program.graph, parts),
            .is_capped = has(parts.cap),
            .multiplier_is_one = passes::multiplies_by_one(mod.program.graph, parts),
            .has_factor = has_factor,
            .factor_is_of_head = has_factor && mod.place[parts.multiplier] <= passes::Place::head,
            .has_row_addend = has(parts.row_addend),
            .has_remainder_addend = has(parts.remainder_addend),
            .has_element_addend = has(parts.element_addend),
            .has_key_addend = has(parts.key_addend) && !multiplies_key_addend,
            .has_distance_addend = has(parts.distance_addend),
            .has_slope = has(parts.slope),
            .slope_is_of_head = has(parts.slope) && mod.place[parts.slope] <= passes::Place::head,
            .are_exponents = parts.are_exponents(),
            .uses_reads_of_keys = reads_keys(mod),
            .reads_keys = reads_keys(mod, values_before(parts)),
            .exponent_bound = exponent_bound(mod)};
}

// Emits a constant of a type that host and device share. Members that are zero are omitted.
class SharedConstant {
  public:
    SharedConstant(std::string_view type, std::string_view made_by)
        : text_(formatted("constexpr sm90::{0} {1}() {{\n    sm90::{0} made;\n", type, made_by)) {}

    template <typename Value> void member(std::string_view called, Value value) {
        if (value != Value{}) text_ += formatted("    made.{} = {};\n", called, value);
    }
    std::string text() const { return text_ + "    return made;\n}\n"; }

  private:
    std::string text_;
};

std::string emit_sizes(const ::sm90::ForwardSizes& sizes) {
    SharedConstant constant("ForwardSizes", "sizes");
#define FLEXC_MEMBER(type, name) constant.member(#name, sizes.name);
#include "sm90/forward_sizes.def"
    return constant.text() + "constexpr sm90::ForwardSizes kSizes = sizes();\n";
}

std::string emit_form(const ::sm90::ScoreForm& form) {
    SharedConstant constant("ScoreForm", "score_form");
#define FLEXC_MEMBER(type, name) constant.member(#name, form.name);
#include "sm90/score_form.def"
    return constant.text() + "constexpr sm90::ScoreForm kScoreForm = score_form();\n";
}

std::string emit_schedule(const plan::ForwardSchedule& schedule,
                          const plan::sm90::Forward& forward) {
    Policy policy("ForwardSchedule");
    policy.constant("kOverlaps", schedule.overlaps, true);
    if (schedule.ping_pong != plan::PingPong::none)
        policy.member(formatted("    static constexpr PingPong kPingPong = PingPong::{};\n",
                                name(schedule.ping_pong)));
    policy.constant("kRescalesAfter", schedule.rescales_after);
    policy.constant("kPolynomials", schedule.polynomials);
    policy.constant("kStartsAtHighest", forward.starts_at_highest);
    policy.constant("kComputesInParts", forward.computes_in_parts);
    policy.constant("kHasRegistersForColumns", forward.has_registers_for_columns, true);
    return policy.text();
}

// Returns the body of a function that selects one of the values, scaled as the kernel adds it.
Body values_of(const Layout& layout, const passes::ScoreParts& parts,
               const std::vector<NodeId>& values, bool multiplies_first = false) {
    Body body(layout, passes::Place::element, "at.");
    body.compute(values);
    for (std::size_t i = 0; i < values.size(); ++i) {
        const bool is_addend = values[i] == parts.key_addend || values[i] == parts.distance_addend;
        const std::string value = as_float(layout, values[i], body.text(values[i]));
        // Rounding toward zero keeps finite numbers finite in exponents, because -inf would hide an
        // element.
        const bool becomes_exponent =
            i == 0 && is_addend && parts.are_exponents() && !multiplies_first;
        body.line(formatted("if (value == {}) return {};", i,
                            becomes_exponent ? "__fmul_rz(" + value + ", 1.44269504f)" : value));
    }
    body.line("return 0;");
    return body;
}

std::string emit_vectors(const Layout& layout, const passes::ScoreParts& parts,
                         const plan::sm90::Forward& forward) {
    const passes::TabulatedValues& tabulated = forward.tabulated;
    if (!tabulated.any()) return "";
    const int distance_copies = forward.sizes.starts_with_distances ? 1 : kDistanceCopies;
    Policy policy("TabulatedVectors");
    policy.constant("kByKey", tabulated.keys);
    policy.constant("kMultipliesFirst", forward.sizes.multiplies_key_addend);
    policy.constant("kRowFactors", forward.sizes.row_key_products);
    policy.constant("kByDistance", tabulated.distances);
    policy.constant("kDistanceCopies", distance_copies, 1);
    policy.constant("kDistancesComeFirst", forward.sizes.starts_with_distances);
    policy.constant("kTileOverhang", kForwardOverhang);
    policy.constant("kUseBatch", tabulated.by_batch, true);
    policy.constant("kUseHead", tabulated.by_head, true);
    policy.function(
        "float key_value(const At& at, int value)",
        values_of(layout, parts, parts.key_values, forward.sizes.multiplies_key_addend));
    if (forward.sizes.row_key_products != 0) {
        std::vector<NodeId> rows;
        for (const passes::RowKeyProduct& product : parts.products)
            rows.push_back(product.row);
        policy.function("float row_factor(const At& at, int value)",
                        values_of(layout, parts, rows));
    }
    policy.function(
        "float distance_value(const At& at, int value)",
        values_of(layout, parts, parts.distance_values, forward.sizes.starts_with_distances));
    return policy.text();
}

// Emits the functions that find the kind of a key or pair, and what each kind adds.
std::string emit_kinds(const Layout& layout, const passes::KeyKinds& kinds, bool has_block_mask) {
    if (!kinds.found()) return "";
    Body kind(layout, passes::Place::element, "at.");
    kind.compute({kinds.kind});
    kind.line("const auto kind = " + unbracketed(kind.text(kinds.kind)) + ";");
    kind.line("return 0 <= kind && kind < kCount ? static_cast<int>(kind) : -1;");
    Body addend(layout, passes::Place::element, "at.");
    addend.read_without_branches();
    addend.compute({kinds.addend_of_kind});
    addend.line("return " + unbracketed(addend.text(kinds.addend_of_kind)) + ";");
    Policy policy("KeyKinds");
    policy.constant("kCount", kinds.count);
    policy.constant("kPairsUseBatch", !kinds.are_of_pairs || kinds.pairs_use_batch, true);
    const passes::Mod& mod = layout.mod();
    policy.constant("kHeadsSeeAlike", kinds.are_of_pairs && !has_block_mask &&
                                          !mod.dependence[mod.mask].has(analysis::Dependence::h));
    policy.function("int kind(const At& at)", kind);
    policy.function("float addend(const At& at)", addend);
    return policy.text();
}

// Emits sums for so many elements at once. body_of: of a function of an element, by how it reads
// tables.
std::string emit_sums(const Layout& layout, const std::vector<NodeId>& sums, int elements,
                      bool has_tables, const std::function<Body(TableReads)>& body_of) {
    if (sums.empty()) return "";
    const std::vector<NodeId> given = passes::carried_by_sums(layout.mod(), sums);
    std::string functions;
    const auto enter = [&](const std::string& prefix, TableReads reads) {
        Body body = body_of(reads);
        fill_enter(body, given);
        functions += member_function(
            "void " + prefix + "enter(const At& at, float score, float* carried)", body);
    };
    enter("", TableReads::memory);
    if (has_tables)
        for (const TableReads reads :
             {TableReads::staged, TableReads::conditional, TableReads::checked})
            enter(std::string(name(reads)) + "_", reads);
    return emit_element_sums(layout, sums, given, elements, functions);
}

} // namespace

std::string emit_logit_constants(const plan::KernelConfig& config, const passes::Mod& mod,
                                 const passes::ScoreParts& parts) {
    const plan::sm90::Forward& forward = *plan::sm90::forward_of(config);
    std::string text = emit_sizes(sizes_of(forward, parts)) +
                       emit_form(form_of(mod, parts, forward)) +
                       formatted("constexpr int kKeyStep = {};\n", forward.key_step) +
                       emit_schedule(*config.schedule, forward);
    // A macro, because it decides whether the template has another entry point.
    if (forward.expands()) text += "#define FLEXC_EXPANDS\n";
    return text;
}

std::string emit_logit_functions(const Layout& layout, const plan::KernelConfig& config,
                                 const passes::ScoreParts& parts, int mask_instructions) {
    const plan::sm90::Forward& forward = *plan::sm90::forward_of(config);
    const std::vector<int>& table_words = forward.table_words;
    const bool aligns = config.decomposition.of == plan::Decomposition::Of::with_aligned_tables;
    std::vector<passes::AlignedTable> aligned;
    passes::TableConditions conditions;
    if (aligns) {
        aligned = passes::aligned_tables(layout.mod(), parts.staged, config.block.key_tile,
                                         forward.key_step)
                      .value_or(std::vector<passes::AlignedTable>{});
        conditions = passes::table_conditions(layout.mod(), parts.staged, parts.element_addend);
    }
    Policy tables("StagedTables");
    std::string text =
        emit_staged_tables(tables, layout, parts.staged, table_words, aligned,
                           [&](Body& body) { provide_expanded(body, layout, parts); });
    // For few words, scaling slices as they are copied takes less time than scaling every element
    // in the consumers.
    constexpr int kMostScaledWords = 2048;
    const bool comes_first = passes::starts_with_tables(layout.mod().program.graph, parts);
    const bool scales_slices =
        (aligns || comes_first) &&
        std::accumulate(table_words.begin(), table_words.end(), 0) <= kMostScaledWords &&
        passes::scales_with_tables(layout.mod().program.graph, parts.staged, parts.element_addend);
    add_table_conditions(tables, layout, conditions, scales_slices);
    text += emit_shifted_reads(layout, parts.shifted, parts.element_addend);
    const std::vector<NodeId> sums = sums_at_once(layout.mod(), parts, config);
    // Returns an element's body that has what the kernel finds for it elsewhere. bias: name of the
    // copied read's value.
    const auto element_body = [&](TableReads reads, bool guesses_logs, const std::string& bias) {
        Body body(layout, passes::Place::element, "at.");
        set_table_reads(body, reads, guesses_logs);
        if (parts.bias_read != kNoNode)
            body.provide(parts.bias_read, from_float(layout, parts.bias_read, bias));
        provide_expanded(body, layout, parts);
        const bool are_loaded = reads == TableReads::staged || reads == TableReads::conditional;
        if (aligns && are_loaded)
            for (std::size_t i = 0; i < parts.staged.tables.size(); ++i)
                body.provide(parts.staged.tables[i].read, formatted("at.loaded[{}]", i));
        if (aligns && reads == TableReads::staged)
            for (const auto* assumed : {&conditions.of_queries, &conditions.of_keys})
                for (const auto& [id, holds] : *assumed)
                    body.provide(id, holds ? "true" : "false");
        return body;
    };
    const auto function = [&](std::string_view called, NodeId value,
                              const std::string& parameter = "",
                              TableReads reads = TableReads::memory, bool guesses_logs = false) {
        Body body = parameter.empty() ? Body(layout, passes::Place::element, "at.")
                                      : element_body(reads, guesses_logs, parameter);
        if (!parameter.empty()) provide_totals(body, sums);
        if (value != kNoNode && (value == parts.quotient_addend || value == parts.remainder_addend))
            body.read_without_branches();
        if (value != kNoNode) body.compute({value});
        body.line(
            formatted("return {};", value == kNoNode ? "0.0f" : unbracketed(body.text(value))));
        text += element_function("float", called, parameter, body, mask_instructions);
        return body.has_guesses();
    };
    const auto part = [&](std::string_view called, NodeId value,
                          const std::string& parameter = "") {
        if (value != kNoNode) function(called, value, parameter);
    };
    part("multiplier", parts.multiplier);
    part("row_addend", parts.row_addend);
    part("slope", parts.slope);
    part("quotient_addend", parts.quotient_addend);
    part("remainder_addend", parts.remainder_addend);
    part("element_addend", parts.element_addend, "bias");
    part("cap", parts.cap);
    // Guesses need a second evaluation of an element, which is impossible if addends come before
    // the products, or if values by distance or sums exist only in unrolled columns.
    const bool may_guess =
        parts.bias_read == kNoNode && parts.distance_values.empty() && !aligns && sums.empty();
    bool has_guesses = false;
    const auto of_tables = [&](std::string_view called, TableReads reads, bool guesses_logs) {
        has_guesses =
            function(called, parts.element_addend, "bias", reads, guesses_logs) || has_guesses;
    };
    if (!table_words.empty() && parts.found()) {
        of_tables("staged_element_addend", TableReads::staged, may_guess);
        if (conditions.any())
            of_tables("conditional_element_addend", TableReads::conditional, false);
        of_tables("checked_element_addend", TableReads::checked, may_guess);
        of_tables("exact_element_addend", TableReads::checked, false);
    }
    tables.constant("kLogsAreGuessed", has_guesses);
    tables.constant("kComeFirst", !table_words.empty() && comes_first && !has_guesses);
    text += tables.text();
    text += emit_sums(layout, sums, config.sum_elements, !table_words.empty(),
                      [&](TableReads reads) { return element_body(reads, false, "at.bias"); });
    text += emit_dense_bias(layout, parts.bias_read);
    text += emit_kinds(layout, parts.kinds, config.has_block_mask);
    text += emit_vectors(layout, parts, forward);
    Policy key_index("KeyIndex2d");
    key_index.constant("kWidth", config.decomposition.key_width);
    return text + key_index.text();
}

} // namespace flexc::cuda
