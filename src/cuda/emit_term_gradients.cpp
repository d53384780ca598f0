#include "cuda/emit_term_gradients.h"

#include <functional>
#include <string_view>

#include "cuda/arch/family_text.h"
#include "cuda/emit_element_sums.h"
#include "cuda/kernel_gradients.h"
#include "cuda/policy.h"
#include "passes/element_sums.h"
#include "passes/term_gradient.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using passes::Place;

namespace {

// The text of the gradients of one counter's terms, for TermSums: templates/policies/term_sums.cuh
// has the members.
class TermsText {
  public:
    // given: what elements carry.
    TermsText(const SymbolTable& symbols, NodeId counter, const std::vector<NodeId>& given)
        : symbols_(symbols), counter_(counter), given_(given) {}

    // Of gradients of these reads.
    std::string gradients(std::string_view name, const std::vector<passes::ReadGradient>& learned,
                          int first_word) const {
        std::vector<NodeId> factors;
        std::string places, finite;
        for (std::size_t i = 0; i < learned.size(); ++i) {
            factors.push_back(learned[i].element_factor);
            places += formatted("read == {} ? TermPlace::{} : ", i, place(learned[i].read));
            if (symbols_.mod().ranges.finite[factors.back()])
                finite += formatted("read == {} || ", i);
        }
        const std::string value = counter_parameter(symbols_, counter_);
        return formatted("struct {} {{\n"
                         "    static constexpr int kReads = {}, kCount = {}, kFirstWord = {};\n"
                         "    struct Parts {{\n        float of[kReads];\n    }};\n"
                         "    static constexpr __device__ TermPlace place(int read) {{\n"
                         "        return {}TermPlace::element;\n    }}\n"
                         "    static constexpr __device__ bool is_finite(int read) {{\n"
                         "        return {}false;\n    }}\n",
                         name, learned.size(), passes::count_terms(symbols_.mod(), counter_),
                         first_word, places, finite) +
               counter_range(symbols_, counter_) + term_parts(symbols_, counter_, given_, factors) +
               member_function(formatted("float factor(const At& at, int read, {})", value),
                               factors_of(learned)) +
               member_function(formatted("{}* address(const At& at, int read, {})",
                                         symbols_.mod().deterministic ? "exact::Sum" : "float",
                                         value),
                               addresses_of(learned)) +
               "};\n\n";
    }

  private:
    std::string_view place(NodeId read) const {
        switch (passes::place_of_term(symbols_.mod(), read)) {
        case Place::launch:
        case Place::head: return "head";
        case Place::row: return "query";
        case Place::column: return "key";
        case Place::element: break;
        }
        return "element";
    }
    Body factors_of(const std::vector<passes::ReadGradient>& learned) const {
        Body body(symbols_, Place::element, "at.");
        for (std::size_t i = 0; i < learned.size(); ++i) {
            const NodeId factor = learned[i].head_factor;
            if (factor == ir::kNoNode) continue;
            add_case(body, i, {factor},
                     [&](Body& inside) { return unbracketed(inside.text(factor)); });
        }
        body.line("return 1;");
        return body;
    }
    Body addresses_of(const std::vector<passes::ReadGradient>& learned) const {
        Body body(symbols_, Place::element, "at.");
        for (std::size_t i = 0; i < learned.size(); ++i) {
            const NodeId read = learned[i].read;
            add_case(body, i, symbols_.node(read).operands,
                     [&](Body& inside) { return inside.gradient_address(read); });
        }
        body.line("return nullptr;");
        return body;
    }
    void add_case(Body& body, std::size_t index, const std::vector<NodeId>& roots,
                  const std::function<std::string(Body&)>& value_of) const {
        body.line(formatted("if (read == {}) {{", index));
        Body own(symbols_, Place::element, "at.");
        own.compute(passes::entering(symbols_.mod(), roots));
        own.term(counter_, [&](Body& inside) {
            inside.compute(roots);
            inside.line("return " + value_of(inside) + ";");
        });
        body.lines_of(own);
        body.line("}");
    }

    const SymbolTable& symbols_;
    const NodeId counter_;
    const std::vector<NodeId>& given_;
};

} // namespace

std::string emit_term_gradients(const SymbolTable& symbols,
                                const std::vector<passes::ReadGradient>& terms) {
    if (terms.empty()) return "";
    Body each(symbols, Place::element, "at.");
    each.compute(passes::entering(
        symbols.mod(), gradient_roots(symbols.mod(), terms, {&passes::ReadGradient::sum_factor})));
    for (const auto& [counter, of_counter] : by_counter(symbols.mod(), terms))
        each.loop(counter, [&](Body& inside) {
            inside.compute(
                gradient_roots(symbols.mod(), of_counter, {&passes::ReadGradient::sum_factor}));
            for (const passes::ReadGradient& gradient : of_counter)
                inside.line(formatted(
                    "add({}, {}, {});", inside.gradient_address(gradient.read),
                    unbracketed(inside.text(gradient.sum_factor)),
                    (symbols.mod().dependence[gradient.read].bits & analysis::kPositions) == 0));
        });
    Policy policy("TermGradients");
    policy.constant("kExist", true);
    policy.member("    template <typename Add>\n");
    policy.function("void visit(const At& at, Add add)", each);
    return policy.text();
}

std::vector<NodeId> carried_by_terms(const SymbolTable& symbols,
                                     const std::vector<passes::ReadGradient>& gradients,
                                     const std::vector<NodeId>& sums) {
    std::vector<NodeId> terms;
    for (const passes::ReadGradient& gradient : gradients)
        terms.push_back(gradient.element_factor);
    for (const NodeId sum : sums)
        terms.push_back(symbols.node(sum).operands[1]);
    return passes::carried_values(symbols.mod(), terms);
}

std::string emit_term_sums(const SymbolTable& symbols, const plan::KernelConfig& config,
                           const std::vector<passes::ReadGradient>& terms,
                           const std::vector<NodeId>& given) {
    if (terms.empty()) return "";
    Policy policy("TermSums");
    policy.constant("kExist", true);
    policy.constant("kWords", config.storage.term_words);
    if (!has_backward_policies(config))
        policy.constant("kCarried", static_cast<int>(given.size()), 0);
    std::string text;
    int learned = 0, words = 0;
    const bool keeps = config.storage.term_words > 0;
    for (const auto& [counter, of_counter] : by_counter(symbols.mod(), terms)) {
        text += TermsText(symbols, counter, given)
                    .gradients(formatted("Terms{}", learned++), of_counter, keeps ? words : 0);
        words +=
            passes::count_term_reads(symbols.mod(), of_counter).words(config.storage.term_keys);
    }
    policy.member(visit_function("visit", "Terms", learned));
    return text + policy.text();
}

} // namespace flexc::cuda
