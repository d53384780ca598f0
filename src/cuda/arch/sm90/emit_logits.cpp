#include "cuda/arch/sm90/emit_logits.h"

#include <numeric>

#include "common/tabulated.h"
#include "cuda/emit_dense_bias.h"
#include "cuda/emit_element_sums.h"
#include "cuda/emit_score_parts.h"
#include "cuda/emit_shifted_reads.h"
#include "cuda/emit_staged_tables.h"
#include "cuda/policy.h"
#include "passes/element_sums.h"
#include "plan/arch/sm90/sm90.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::kNoNode;
using ir::NodeId;

namespace {

// Converts text to a float: values that are computed before the kernel are stored as floats,
// integers by their bits.
std::string as_float(const SymbolTable& symbols, NodeId id, const std::string& text) {
    switch (symbols.type(id)) {
    case CType::boolean: return text + " ? 1.0f : 0.0f";
    case CType::narrow: return "__int_as_float(" + unbracketed(text) + ")";
    case CType::wide:
    case CType::real: break;
    }
    return text;
}

// Returns the body of a function that selects one of the values, scaled as the kernel adds it.
Body values_of(const SymbolTable& symbols, const passes::ScoreParts& parts,
               const std::vector<NodeId>& values, bool multiplies_first = false) {
    Body body(symbols, passes::Place::element, "at.");
    body.compute(values);
    for (std::size_t i = 0; i < values.size(); ++i) {
        const bool is_addend = values[i] == parts.key_addend || values[i] == parts.distance_addend;
        const std::string value = as_float(symbols, values[i], body.text(values[i]));
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

std::string emit_vectors(const SymbolTable& symbols, const passes::ScoreParts& parts,
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
        values_of(symbols, parts, parts.key_values, forward.sizes.multiplies_key_addend));
    if (forward.sizes.row_key_products != 0) {
        std::vector<NodeId> rows;
        for (const passes::RowKeyProduct& product : parts.products)
            rows.push_back(product.row);
        policy.function("float row_factor(const At& at, int value)",
                        values_of(symbols, parts, rows));
    }
    policy.function(
        "float distance_value(const At& at, int value)",
        values_of(symbols, parts, parts.distance_values, forward.sizes.starts_with_distances));
    return policy.text();
}

// Emits the functions that find the kind of a key or pair, and what each kind adds.
std::string emit_kinds(const SymbolTable& symbols, const passes::KeyKinds& kinds,
                       bool has_block_mask) {
    if (!kinds.found()) return "";
    Body kind(symbols, passes::Place::element, "at.");
    kind.compute({kinds.kind});
    kind.line("const auto kind = " + unbracketed(kind.text(kinds.kind)) + ";");
    kind.line("return 0 <= kind && kind < kCount ? static_cast<int>(kind) : -1;");
    Body addend(symbols, passes::Place::element, "at.");
    addend.read_without_branches();
    addend.compute({kinds.addend_of_kind});
    addend.line("return " + unbracketed(addend.text(kinds.addend_of_kind)) + ";");
    Policy policy("KeyKinds");
    policy.constant("kCount", kinds.count);
    policy.constant("kPairsUseBatch", !kinds.are_of_pairs || kinds.pairs_use_batch, true);
    const passes::Mod& mod = symbols.mod();
    policy.constant("kHeadsSeeAlike", kinds.are_of_pairs && !has_block_mask &&
                                          !mod.dependence[mod.mask].has(analysis::Dependence::h));
    policy.function("int kind(const At& at)", kind);
    policy.function("float addend(const At& at)", addend);
    return policy.text();
}

// The functions that compute logits, and the policies of what they read.
class LogitFunctions {
  public:
    LogitFunctions(const SymbolTable& symbols, const plan::KernelConfig& config,
                   const passes::ScoreParts& parts, int mask_instructions)
        : symbols_(symbols), config_(config), parts_(parts),
          forward_(*plan::sm90::forward_of(config)), mask_instructions_(mask_instructions),
          sums_(sums_at_once(symbols.mod(), parts, config)) {
        if (!aligns_tables()) return;
        aligned_ = passes::aligned_tables(symbols.mod(), parts.staged, config.block.key_tile,
                                          forward_.key_step)
                       .value_or(std::vector<passes::AlignedTable>{});
        conditions_ = passes::table_conditions(symbols.mod(), parts.staged, parts.element_addend);
    }

    std::string text() const {
        Policy tables("StagedTables");
        std::string text = staged_tables(tables);
        text += emit_shifted_reads(symbols_, parts_.shifted, parts_.element_addend);
        text += parts_of_logits();
        text += addends_from_tables(tables);
        text += tables.text();
        text += sums();
        text += emit_dense_bias(symbols_, parts_.bias_read, parts_.bias_band);
        text += emit_kinds(symbols_, parts_.kinds, config_.has_block_mask);
        text += emit_vectors(symbols_, parts_, forward_);
        text += key_index();
        return text;
    }

  private:
    bool has_tables() const { return !forward_.table_words.empty(); }
    bool aligns_tables() const {
        return config_.decomposition.of == plan::Decomposition::Of::with_aligned_tables;
    }
    bool tables_come_first() const {
        return passes::starts_with_tables(symbols_.mod().program.graph, parts_);
    }

    std::string staged_tables(Policy& policy) const {
        const std::vector<int>& words = forward_.table_words;
        const std::string text =
            emit_staged_tables(policy, symbols_, parts_.staged, words, aligned_,
                               [&](Body& body) { provide_parts(body, symbols_, parts_); });
        // For few words, scaling slices as they are copied takes less time than scaling every
        // element in the consumers.
        constexpr int kMostScaledWords = 2048;
        const bool scales_slices =
            (aligns_tables() || tables_come_first()) &&
            std::accumulate(words.begin(), words.end(), 0) <= kMostScaledWords &&
            passes::scales_with_tables(symbols_.mod().program.graph, parts_.staged,
                                       parts_.element_addend);
        add_table_conditions(policy, symbols_, conditions_, scales_slices);
        return text;
    }

    // Functions of the parts that a program has, with reads from memory.
    std::string parts_of_logits() const {
        const bool has_addend = parts_.element_addend != kNoNode;
        return part("multiplier", parts_.multiplier) + part("row_addend", parts_.row_addend) +
               part("slope", parts_.slope) + part("quotient_addend", parts_.quotient_addend) +
               part("remainder_addend", parts_.remainder_addend) +
               (has_addend ? addend("element_addend", TableReads::memory, false).text : "") +
               part("cap", parts_.cap);
    }
    std::string part(std::string_view called, NodeId value) const {
        if (value == kNoNode) return "";
        Body body(symbols_, passes::Place::element, "at.");
        if (value == parts_.quotient_addend || value == parts_.remainder_addend)
            body.read_without_branches();
        body.compute({value});
        body.line("return " + unbracketed(body.text(value)) + ";");
        return element_function("float", called, "", body, mask_instructions_);
    }

    // Functions of what elements add, by how they read tables.
    std::string addends_from_tables(Policy& policy) const {
        std::string text;
        bool has_guesses = false;
        const auto add = [&](std::string_view called, TableReads reads, bool guesses_logs) {
            const Addend added = addend(called, reads, guesses_logs);
            text += added.text;
            has_guesses = has_guesses || added.has_guesses;
        };
        if (has_tables() && parts_.found()) {
            // Guesses need a second evaluation of an element, which is impossible if addends come
            // before the products, or if values by distance or sums exist only in unrolled columns.
            const bool may_guess = parts_.bias_read == kNoNode && parts_.distance_values.empty() &&
                                   !aligns_tables() && sums_.empty();
            add("staged_element_addend", TableReads::staged, may_guess);
            if (conditions_.any())
                add("conditional_element_addend", TableReads::conditional, false);
            add("checked_element_addend", TableReads::checked, may_guess);
            add("exact_element_addend", TableReads::checked, false);
        }
        policy.constant("kLogsAreGuessed", has_guesses);
        policy.constant("kComeFirst", has_tables() && tables_come_first() && !has_guesses);
        return text;
    }
    struct Addend {
        std::string text;
        bool has_guesses;
    };
    Addend addend(std::string_view called, TableReads reads, bool guesses_logs) const {
        Body body = element_body(reads, guesses_logs, "bias");
        provide_totals(body, sums_);
        const NodeId value = parts_.element_addend;
        if (value != kNoNode) body.compute({value});
        body.line(
            formatted("return {};", value == kNoNode ? "0.0f" : unbracketed(body.text(value))));
        return {element_function("float", called, "bias", body, mask_instructions_),
                body.has_guesses()};
    }

    // Returns an element's body that has what the kernel finds for it elsewhere. bias: name of the
    // copied read's value.
    Body element_body(TableReads reads, bool guesses_logs, const std::string& bias) const {
        Body body(symbols_, passes::Place::element, "at.");
        set_table_reads(body, reads, guesses_logs);
        if (parts_.bias_read != kNoNode)
            body.provide(parts_.bias_read, from_float(symbols_, parts_.bias_read, bias));
        provide_parts(body, symbols_, parts_);
        if (!aligns_tables()) return body;
        if (reads == TableReads::staged || reads == TableReads::conditional)
            for (std::size_t i = 0; i < parts_.staged.tables.size(); ++i)
                body.provide(parts_.staged.tables[i].read, formatted("at.loaded[{}]", i));
        if (reads == TableReads::staged)
            for (const auto* assumed : {&conditions_.of_queries, &conditions_.of_keys})
                for (const auto& [id, holds] : *assumed)
                    body.provide(id, holds ? "true" : "false");
        return body;
    }

    // Sums that are computed for some elements at once.
    std::string sums() const {
        if (sums_.empty()) return "";
        const std::vector<NodeId> given = passes::carried_by_sums(symbols_.mod(), sums_);
        std::string called, functions;
        const auto enter = [&](const std::string& prefix, TableReads reads) {
            const EnterText text = enter_text(element_body(reads, false, "at.bias"), given, prefix);
            called += text.called;
            functions += text.member;
        };
        enter("", TableReads::memory);
        if (has_tables())
            for (const TableReads reads :
                 {TableReads::staged, TableReads::conditional, TableReads::checked})
                enter(std::string(name(reads)) + "_", reads);
        return called + emit_element_sums(symbols_, sums_, given, config_.sum_elements, functions);
    }

    std::string key_index() const {
        Policy policy("KeyIndex2d");
        policy.constant("kWidth", config_.decomposition.key_width);
        return policy.text();
    }

    const SymbolTable& symbols_;
    const plan::KernelConfig& config_;
    const passes::ScoreParts& parts_;
    const plan::sm90::Forward& forward_;
    const int mask_instructions_;
    const std::vector<NodeId> sums_;
    std::vector<passes::AlignedTable> aligned_;
    passes::TableConditions conditions_;
};

} // namespace

std::string emit_logit_functions(const SymbolTable& symbols, const plan::KernelConfig& config,
                                 const passes::ScoreParts& parts, int mask_instructions) {
    return LogitFunctions(symbols, config, parts, mask_instructions).text();
}

} // namespace flexc::cuda
