#include "cuda/emit_element_sums.h"

#include <map>
#include <span>

#include "cuda/policy.h"
#include "passes/element_sums.h"
#include "plan/work.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using passes::Place;

std::string counter_parameter(const SymbolTable& symbols, NodeId counter) {
    return formatted("{} {}", spelling(symbols.type(counter)),
                     value_name(symbols.mod().program, counter));
}

std::string counter_range(const SymbolTable& symbols, NodeId counter) {
    const CType type = symbols.type(counter);
    const auto end = [&](NodeId id) {
        Body body(symbols, Place::element, "at.");
        body.compute({id});
        body.line("return " + unbracketed(body.text_as(id, type)) + ";");
        return body;
    };
    const ir::Node& range = symbols.node(counter);
    return formatted("    using Counter = {};\n", spelling(type)) +
           member_function("Counter first(const At& at)", end(range.operands[0])) +
           member_function("Counter end(const At& at)", end(range.operands[1]));
}

std::string term_parts(const SymbolTable& symbols, NodeId counter, const std::vector<NodeId>& given,
                       const std::vector<NodeId>& values) {
    Body body(symbols, Place::element, "at.");
    for (std::size_t i = 0; i < given.size(); ++i)
        if (symbols.node(given[i]).op == ir::Op::score)
            body.line(formatted("const float score = carried[{}];", i));
        else
            body.provide(given[i], formatted("carried[{}]", i));
    body.compute(passes::entering(symbols.mod(), values));
    body.term(counter, [&](Body& inside) {
        inside.compute(values);
        std::string all;
        for (const NodeId id : values)
            all += (all.empty() ? "" : ", ") + unbracketed(inside.text_as(id, CType::real));
        inside.line("return {{" + all + "}};");
    });
    return member_function(formatted("Parts parts(const At& at, const float* carried, {})",
                                     counter_parameter(symbols, counter)),
                           body);
}

EnterText enter_text(Body body, const std::vector<NodeId>& given, std::string_view prefix) {
    const std::string signature =
        formatted("void {}enter(const At& at, float score, float* carried)", prefix);
    body.compute(given);
    const bool is_called = body.instructions() > plan::kMostWrittenOut;
    if (is_called) body.line(formatted("{}Entering entering;", prefix));
    for (std::size_t i = 0; const NodeId id : given)
        body.line(formatted("{}[{}] = {};", is_called ? "entering.of" : "carried", i++,
                            unbracketed(body.text(id))));
    if (!is_called) return {"", member_function(signature, body)};
    body.line("return entering;");
    const std::string type = formatted("{}Entering", prefix),
                      name = formatted("{}entering", prefix);
    const Parameter score{"float", "score"};
    return {formatted("struct {} {{\n    float of[{}];\n}};\n", type, given.size()) +
                called_element_function(type, name, std::span(&score, 1), body),
            formatted("    static __device__ {} {{\n"
                      "        const {} values = {}(at, score);\n"
                      "        #pragma unroll\n"
                      "        for (int i = 0; i < {}; ++i)\n"
                      "            carried[i] = values.of[i];\n    }}\n",
                      signature, type, name, given.size())};
}

void provide_totals(Body& body, const std::vector<NodeId>& sums) {
    for (std::size_t i = 0; i < sums.size(); ++i)
        body.provide(sums[i], formatted("at.sums[{}]", i));
}

std::vector<NodeId> sums_at_once(const passes::Mod& mod, const passes::ScoreParts& parts,
                                 const plan::KernelConfig& config) {
    return config.sum_elements == 0 ? std::vector<NodeId>{} : passes::element_sums(mod, parts);
}

std::string visit_function(std::string_view function, std::string_view types, int count) {
    std::string calls;
    for (int i = 0; i < count; ++i)
        calls += formatted("        visit_terms({}{}{{}});\n", types, i);
    return formatted("    template <typename Visit> static __device__ void {}(Visit "
                     "visit_terms) {{\n{}    }}\n",
                     function, calls);
}

std::string emit_element_sums(const SymbolTable& symbols, const std::vector<NodeId>& sums,
                              const std::vector<NodeId>& given, int elements,
                              const std::string& functions) {
    std::map<NodeId, std::vector<NodeId>> by_counter;
    for (const NodeId sum : sums)
        by_counter[symbols.node(sum).operands[0]].push_back(sum);
    std::string types; // one for each counter
    std::size_t totals = 0;
    int counters = 0;
    for (const auto& [counter, of_counter] : by_counter) {
        std::vector<NodeId> terms;
        for (const NodeId sum : of_counter)
            terms.push_back(symbols.node(sum).operands[1]);
        types += formatted("struct Totals{} {{\n"
                           "    static constexpr int kSums = {}, kFirst = {};\n"
                           "    struct Parts {{\n        float of[kSums];\n    }};\n",
                           counters++, of_counter.size(), totals) +
                 counter_range(symbols, counter) + term_parts(symbols, counter, given, terms) +
                 "};\n\n";
        totals += of_counter.size();
    }
    Policy policy("ElementSums");
    policy.constant("kElements", elements);
    policy.constant("kCarried", static_cast<int>(given.size()));
    policy.constant("kTotals", static_cast<int>(sums.size()));
    policy.member(functions);
    policy.member(visit_function("visit_totals", "Totals", counters));
    return types + policy.text();
}

} // namespace flexc::cuda
