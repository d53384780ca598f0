#include "cuda/emit_gradients.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <map>
#include <utility>

#include "cuda/arch/family_text.h"
#include "cuda/emit_derivative.h"
#include "cuda/emit_element_sums.h"
#include "cuda/policy.h"
#include "passes/distance_value.h"
#include "passes/element_sums.h"
#include "passes/gradient_sum.h"
#include "passes/grid_gradient.h"
#include "passes/table_gradient.h"
#include "passes/term_gradient.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using passes::Place;
using Kind = passes::ArgumentSlot::Kind;

namespace {

struct Entry {
    std::size_t index; // in Joint::partial
    NodeId read;
};

void add(Body& body, const Layout& layout, NodeId read, const std::string& value,
         const std::string& condition) {
    const std::uint32_t buffer = layout.node(read).symbol;
    const std::string data = body.argument({Kind::gradient_data, buffer});
    const std::string offset = body.offset(read, Kind::gradient_stride);
    const std::string inside = body.inside(read);
    const std::string guard = condition.empty() ? inside
                              : inside.empty()  ? condition
                                                : condition + " && " + inside;
    body.line((guard.empty() ? "" : "if (" + unbracketed(guard) + ") ") + "flexc_accumulate(" +
              data + (offset.empty() ? "" : " + " + offset) + ", " + value + ");");
}

// The policy of gradients that the generic backward sums along a line of a tile.
std::string line_gradients(const Layout& layout, std::string_view name,
                           const std::vector<Entry>& entries) {
    if (entries.empty()) return "";
    Body sum(layout, Place::element, "at."), flush(layout, Place::element, "at.");
    std::vector<NodeId> indices;
    for (const Entry& entry : entries)
        indices.insert(indices.end(), layout.node(entry.read).operands.begin(),
                       layout.node(entry.read).operands.end());
    flush.compute(indices);
    for (std::size_t i = 0; i < entries.size(); ++i) {
        sum.line(formatted("sums[{}] += joint.partial[{}] * d_modified;", i, entries[i].index));
        add(flush, layout, entries[i].read, formatted("sums[{}]", i), "");
    }
    Policy policy(name);
    policy.constant("kCount", static_cast<int>(entries.size()));
    policy.function("void sum(const Joint& joint, float d_modified, float* sums)", sum);
    policy.function("void flush(const At& at, const float* sums)", flush);
    return policy.text();
}

bool is_of_term(const Layout& layout, const passes::ReadGradient& gradient) {
    return layout.is_of_term(gradient.read);
}

// Adds the gradients of one counter's terms, in a loop over them. What the partials share, and the
// score, come with the joint values.
void add_terms(Body& each, const Layout& layout, NodeId counter,
               const std::vector<passes::ReadGradient>& gradients) {
    each.loop(counter, [&](Body& inside) {
        std::vector<NodeId> roots;
        for (const passes::ReadGradient& gradient : gradients) {
            roots.push_back(gradient.partial);
            const auto& indices = layout.node(gradient.read).operands;
            roots.insert(roots.end(), indices.begin(), indices.end());
        }
        inside.compute(roots);
        for (const passes::ReadGradient& gradient : gradients)
            add(inside, layout, gradient.read, inside.text(gradient.partial) + " * d_modified", "");
    });
}

std::map<NodeId, std::vector<passes::ReadGradient>>
by_counter(const Layout& layout, const std::vector<passes::ReadGradient>& gradients) {
    std::map<NodeId, std::vector<passes::ReadGradient>> sorted;
    for (const passes::ReadGradient& gradient : gradients)
        if (is_of_term(layout, gradient))
            sorted[layout.mod().counters[gradient.read]].push_back(gradient);
    return sorted;
}

// Body of a function that returns one of the values by its index, or `otherwise` for kNoNode.
Body values_of(const Layout& layout, const std::vector<NodeId>& values,
               std::string_view otherwise) {
    Body body(layout, Place::element, "at.");
    std::vector<NodeId> computed = values;
    std::erase(computed, ir::kNoNode);
    body.compute(computed);
    for (std::size_t i = 0; i < values.size(); ++i)
        if (values[i] != ir::kNoNode)
            body.line(
                formatted("if (index == {}) return {};", i, unbracketed(body.text(values[i]))));
    body.line(formatted("return {};", otherwise));
    return body;
}

bool has_sum(const passes::Mod& mod, const plan::KernelConfig& config,
             const std::vector<passes::ReadGradient>& gradients, passes::GradientSum sum) {
    return std::ranges::any_of(gradients, [&](const passes::ReadGradient& gradient) {
        return passes::gradient_sum(mod, gradient, config.sums) == sum;
    });
}

// Returns the index of the gradient whose elements have a tile of their own, which all weighted
// gradients share; -1 if there is none.
int weighted_gradient(const plan::KernelConfig& config,
                      const std::vector<passes::ReadGradient>& gradients) {
    const auto first = std::ranges::find_if(gradients, &passes::ReadGradient::is_weighted);
    const bool exists =
        (config.sums.sums_tables || config.sums.weighs_distances) && first != gradients.end();
    return exists ? static_cast<int>(first - gradients.begin()) : -1;
}

std::vector<NodeId> staged_columns(const passes::Mod& mod, const plan::KernelConfig& config) {
    return config.storage.stages_columns ? passes::column_reads(mod, config.sums.key_width)
                                         : std::vector<NodeId>{};
}

// The text of the gradients of one counter's terms, for TermSums: templates/policies/term_sums.cuh
// has the members.
class TermsText {
  public:
    // given: what elements carry.
    TermsText(const Layout& layout, NodeId counter, const std::vector<NodeId>& given)
        : layout_(layout), counter_(counter), given_(given) {}

    // Of gradients of these reads.
    std::string gradients(std::string_view name, const std::vector<passes::ReadGradient>& learned,
                          int first_word) const {
        std::vector<NodeId> factors;
        std::string places, finite;
        for (std::size_t i = 0; i < learned.size(); ++i) {
            factors.push_back(learned[i].element_factor);
            places += formatted("read == {} ? TermPlace::{} : ", i, place(learned[i].read));
            if (layout_.mod().ranges.finite[factors.back()])
                finite += formatted("read == {} || ", i);
        }
        const std::string value = counter_parameter(layout_, counter_);
        return formatted("struct {} {{\n"
                         "    static constexpr int kReads = {}, kCount = {}, kFirstWord = {};\n"
                         "    struct Parts {{\n        float of[kReads];\n    }};\n"
                         "    static constexpr __device__ TermPlace place(int read) {{\n"
                         "        return {}TermPlace::element;\n    }}\n"
                         "    static constexpr __device__ bool is_finite(int read) {{\n"
                         "        return {}false;\n    }}\n",
                         name, learned.size(), passes::count_terms(layout_.mod(), counter_),
                         first_word, places, finite) +
               counter_range(layout_, counter_) + term_parts(layout_, counter_, given_, factors) +
               member_function(formatted("float factor(const At& at, int read, {})", value),
                               factors_of(learned)) +
               member_function(formatted("{}* address(const At& at, int read, {})",
                                         layout_.mod().deterministic ? "exact::Sum" : "float",
                                         value),
                               addresses_of(learned)) +
               "};\n\n";
    }

  private:
    std::string_view place(NodeId read) const {
        switch (passes::place_of_term(layout_.mod(), read)) {
        case Place::launch:
        case Place::head: return "head";
        case Place::row: return "query";
        case Place::column: return "key";
        case Place::element: break;
        }
        return "element";
    }
    Body factors_of(const std::vector<passes::ReadGradient>& learned) const {
        Body body(layout_, Place::element, "at.");
        for (std::size_t i = 0; i < learned.size(); ++i) {
            const NodeId factor = learned[i].head_factor;
            add_case(body, i, {factor},
                     [&](Body& inside) { return unbracketed(inside.text(factor)); });
        }
        body.line("return 1;");
        return body;
    }
    Body addresses_of(const std::vector<passes::ReadGradient>& learned) const {
        Body body(layout_, Place::element, "at.");
        for (std::size_t i = 0; i < learned.size(); ++i) {
            const NodeId read = learned[i].read;
            add_case(body, i, layout_.node(read).operands, [&](Body& inside) {
                return element_address(inside, read,
                                       {Kind::gradient_data, layout_.node(read).symbol},
                                       Kind::gradient_stride);
            });
        }
        body.line("return nullptr;");
        return body;
    }
    void add_case(Body& body, std::size_t index, const std::vector<NodeId>& roots,
                  const std::function<std::string(Body&)>& value_of) const {
        body.line(formatted("if (read == {}) {{", index));
        Body own(layout_, Place::element, "at.");
        own.compute(passes::entering(layout_.mod(), roots));
        own.term(counter_, [&](Body& inside) {
            inside.compute(roots);
            inside.line("return " + value_of(inside) + ";");
        });
        body.lines_of(own);
        body.line("}");
    }

    const Layout& layout_;
    const NodeId counter_;
    const std::vector<NodeId>& given_;
};

} // namespace

std::string element_address(const Body& body, NodeId read, passes::ArgumentSlot base, Kind stride) {
    const std::string offset = body.offset(read, stride);
    const std::string data = body.argument(base);
    const std::string inside = body.inside(read);
    const std::string to = data + (offset.empty() ? "" : " + " + offset);
    return inside.empty() ? to : unbracketed(inside) + " ? " + to + " : nullptr";
}

std::vector<passes::ReadGradient> gradients_of(const passes::Mod& mod,
                                               const plan::KernelConfig& config) {
    using enum passes::GradientSum;
    const auto is_added = [&](const passes::ReadGradient& gradient) {
        const bool by_rows = has_backward_policies(config);
        const passes::GradientSum sum = passes::gradient_sum(mod, gradient, config.sums);
        switch (config.kind) {
        case plan::KernelKind::delta: return by_rows && sum == row;
        case plan::KernelKind::backward_dkdv:
        case plan::KernelKind::backward_fused:
        case plan::KernelKind::expand:
        case plan::KernelKind::fold:
            return !by_rows || (sum != row && sum != passes::GradientSum::terms &&
                                !passes::is_of_terms_by_distance(mod, gradient));
        default: return false;
        }
    };
    std::vector<passes::ReadGradient> added =
        config.sums.sums_few_entries ? passes::summed_by_entries(mod) : mod.gradients;
    std::erase_if(added, std::not_fn(is_added));
    return added;
}

std::vector<NodeId> gradient_roots(const passes::Mod& mod,
                                   const std::vector<passes::ReadGradient>& gradients,
                                   std::initializer_list<NodeId passes::ReadGradient::*> factors) {
    std::vector<NodeId> roots;
    for (const passes::ReadGradient& gradient : gradients) {
        for (const auto factor : factors)
            roots.push_back(gradient.*factor);
        const auto& indices = mod.program.graph[gradient.read].operands;
        roots.insert(roots.end(), indices.begin(), indices.end());
    }
    return roots;
}

std::vector<passes::ReadGradient> terms_by_distance(const passes::Mod& mod) {
    std::vector<passes::ReadGradient> terms;
    std::ranges::copy_if(mod.gradients, std::back_inserter(terms),
                         [&](const passes::ReadGradient& gradient) {
                             return passes::is_of_terms_by_distance(mod, gradient);
                         });
    return terms;
}

std::string emit_term_gradients(const Layout& layout,
                                const std::vector<passes::ReadGradient>& terms) {
    if (terms.empty()) return "";
    Body each(layout, Place::element, "at.");
    each.compute(passes::entering(
        layout.mod(), gradient_roots(layout.mod(), terms, {&passes::ReadGradient::sum_factor})));
    for (const auto& [counter, of_counter] : by_counter(layout, terms))
        each.loop(counter, [&](Body& inside) {
            inside.compute(
                gradient_roots(layout.mod(), of_counter, {&passes::ReadGradient::sum_factor}));
            for (const passes::ReadGradient& gradient : of_counter)
                inside.line(formatted(
                    "add({}, {}, {});",
                    element_address(inside, gradient.read,
                                    {Kind::gradient_data, layout.node(gradient.read).symbol},
                                    Kind::gradient_stride),
                    unbracketed(inside.text(gradient.sum_factor)),
                    (layout.mod().dependence[gradient.read].bits & analysis::kPositions) == 0));
        });
    Policy policy("TermGradients");
    policy.constant("kExist", true);
    policy.member("    template <typename Add>\n");
    policy.function("void visit(const At& at, Add add)", each);
    return policy.text();
}

std::vector<passes::ReadGradient> terms_of_kernel(const passes::Mod& mod,
                                                  const plan::KernelConfig& config) {
    if (!has_backward_policies(config) || config.kind != plan::KernelKind::backward_fused)
        return {};
    return passes::terms_by_tile(mod);
}

std::vector<NodeId> carried_by_terms(const Layout& layout,
                                     const std::vector<passes::ReadGradient>& gradients,
                                     const std::vector<NodeId>& sums) {
    std::vector<NodeId> terms;
    for (const passes::ReadGradient& gradient : gradients)
        terms.push_back(gradient.element_factor);
    for (const NodeId sum : sums)
        terms.push_back(layout.node(sum).operands[1]);
    return passes::carried_values(layout.mod(), terms);
}

std::string emit_term_sums(const Layout& layout, const plan::KernelConfig& config,
                           const std::vector<passes::ReadGradient>& terms,
                           const std::vector<NodeId>& given) {
    if (terms.empty()) return "";
    Policy policy("TermSums");
    policy.constant("kExist", true);
    policy.constant("kWords", config.storage.term_words);
    std::string text;
    int learned = 0, words = 0;
    const bool keeps = config.storage.term_words > 0;
    for (const auto& [counter, of_counter] : by_counter(layout, terms)) {
        text += TermsText(layout, counter, given)
                    .gradients(formatted("Terms{}", learned++), of_counter, keeps ? words : 0);
        words += passes::term_words(layout.mod(), counter);
    }
    policy.member(visit_function("visit", "Terms", learned));
    return text + policy.text();
}

std::string emit_row_gradients(const Layout& layout,
                               const std::vector<passes::ReadGradient>& gradients) {
    Body partial(layout, Place::element, "at.");
    for (std::size_t i = 0; i < gradients.size(); ++i)
        partial.line(formatted("if (gradient == {}) return {};", i,
                               unbracketed(partial.text(gradients[i].partial))));
    partial.line("return 0;");
    return device_function("float row_partial(const At& at, int gradient)", partial);
}

std::string emit_read_gradients(const Layout& layout, const plan::KernelConfig& config,
                                const std::vector<passes::ReadGradient>& gradients,
                                bool come_from_elements) {
    std::string sums, finite;
    Body each = Body(layout, Place::element, "at.");
    std::vector<NodeId> indices;
    for (const passes::ReadGradient& gradient : gradients)
        indices.insert(indices.end(), layout.node(gradient.read).operands.begin(),
                       layout.node(gradient.read).operands.end());
    each.compute(indices);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        const NodeId read = gradients[i].read;
        sums +=
            formatted("i == {} ? Sum::{} : ", i,
                      passes::name(passes::gradient_sum(layout.mod(), gradients[i], config.sums)));
        if (layout.mod().ranges.finite[gradients[i].partial]) finite += formatted("i == {} || ", i);
        each.line(
            formatted("if (i == {}) return {};", i,
                      element_address(each, read, {Kind::gradient_data, layout.node(read).symbol},
                                      Kind::gradient_stride)));
    }
    each.line("return nullptr;");
    Policy policy("ReadGradients");
    policy.constant("kComeFromElements", come_from_elements);
    policy.constant("kAreAlone", config.gradients_are_alone);
    policy.constant("kQuerySums", config.storage.query_sums);
    policy.constant(
        "kSumsDistances",
        has_sum(layout.mod(), config, gradients, passes::GradientSum::distance) ||
            (config.kind != plan::KernelKind::delta && !terms_by_distance(layout.mod()).empty()));
    policy.constant("kWeighted", weighted_gradient(config, gradients), -1);
    if (!gradients.empty()) {
        policy.member(formatted("    static constexpr __device__ Sum sum_of(int i) {{\n"
                                "        return {}Sum::element;\n    }}\n"
                                "    static constexpr __device__ bool is_finite(int i) {{\n"
                                "        return {}false;\n    }}\n",
                                sums, finite));
        policy.function(formatted("{}* address(const At& at, int i)",
                                  layout.mod().deterministic ? "exact::Sum" : "float"),
                        each);
    }
    return policy.text();
}

std::vector<NodeId> carried(const Layout& layout,
                            const std::vector<passes::ReadGradient>& gradients) {
    std::vector<NodeId> partials;
    for (const passes::ReadGradient& gradient : gradients)
        if (is_of_term(layout, gradient)) partials.push_back(gradient.partial);
    const bool uses_score =
        std::ranges::any_of(gradients, [&](const passes::ReadGradient& gradient) {
            return layout.mod().dependence[gradient.read].has(analysis::Dependence::score);
        });
    return passes::carried_values(layout.mod(), partials, uses_score);
}

std::string emit_gradients(const Layout& layout, const std::vector<passes::ReadGradient>& gradients,
                           passes::TileSums tile) {
    std::vector<Entry> of_head, of_row, of_column, of_element;
    std::size_t of_terms = 0;
    const auto entries_of = [&](Place place) -> std::vector<Entry>& {
        switch (place) {
        case Place::launch:
        case Place::head: return of_head;
        case Place::row: return of_row;
        case Place::column: return of_column;
        case Place::element: break;
        }
        return of_element;
    };
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        const NodeId read = gradients[i].read;
        const passes::GradientSum sum = passes::gradient_sum(layout.mod(), gradients[i], tile);
        if (sum == passes::GradientSum::table || sum == passes::GradientSum::batch) continue;
        if (is_of_term(layout, gradients[i]))
            ++of_terms;
        else
            entries_of(layout.place(read)).push_back({i, read});
    }
    std::string text = formatted("constexpr int kHeadGradients = {}, kElementGradients = {};\n"
                                 "struct GradientSums {{\n"
                                 "    float sum[kHeadGradients ? kHeadGradients : 1];\n}};\n\n",
                                 of_head.size(), of_element.size() + of_terms) +
                       line_gradients(layout, "RowGradients", of_row) +
                       line_gradients(layout, "ColumnGradients", of_column);

    Body each(layout, Place::element, "at.");
    std::vector<NodeId> indices;
    for (const Entry& entry : of_element)
        indices.insert(indices.end(), layout.node(entry.read).operands.begin(),
                       layout.node(entry.read).operands.end());
    const std::vector<NodeId> given = carried(layout, gradients);
    for (std::size_t i = 0; i < given.size(); ++i) {
        const std::string value = formatted("joint.carried[{}]", i);
        if (layout.node(given[i]).op == ir::Op::score)
            each.line(formatted("const float score = {};", value));
        else
            each.provide(given[i], value);
    }
    for (const passes::ReadGradient& gradient : gradients) {
        if (!is_of_term(layout, gradient)) continue;
        std::vector<NodeId> terms = layout.node(gradient.read).operands;
        terms.push_back(gradient.partial);
        const std::vector<NodeId> entered = passes::entering(layout.mod(), terms);
        indices.insert(indices.end(), entered.begin(), entered.end());
    }
    each.compute(indices);
    for (const auto& [counter, of_counter] : by_counter(layout, gradients))
        add_terms(each, layout, counter, of_counter);
    for (const Entry& entry : of_element)
        add(each, layout, entry.read, formatted("joint.partial[{}] * d_modified", entry.index), "");
    text += device_function(
        "void add_gradients(const At& at, const Joint& joint, float d_modified)", each);

    Body sums(layout, Place::element, "at.");
    for (std::size_t i = 0; i < of_head.size(); ++i)
        sums.line(
            formatted("sums.sum[{}] += joint.partial[{}] * d_modified;", i, of_head[i].index));
    text +=
        device_function("void sum_gradients(const At& at, const Joint& joint, float d_modified, "
                        "GradientSums& sums)",
                        sums);

    Body flush = Body::after_head(layout);
    if (!of_head.empty()) flush.line("const bool first_lane = threadIdx.x % 32 == 0;");
    for (std::size_t i = 0; i < of_head.size(); ++i) {
        flush.line(formatted("const float total_{} = flexc_warp_sum(sums.sum[{}]);", i, i));
        add(flush, layout, of_head[i].read, formatted("total_{}", i), "first_lane");
        flush.line(formatted("sums.sum[{}] = 0;", i));
    }
    text +=
        device_function("void flush_gradients(const Arguments& arguments, const Launch& launch, "
                        "const Head& head, int b, int h, int h_kv, GradientSums& sums)",
                        flush);
    return text;
}

std::string emit_shared_gradient(const Layout& layout,
                                 const std::vector<passes::ReadGradient>& gradients,
                                 passes::TileSums tile) {
    std::vector<Entry> summed;
    std::vector<NodeId> indices;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        if (passes::gradient_sum(layout.mod(), gradients[i], tile) != passes::GradientSum::batch)
            continue;
        const auto& operands = layout.node(gradients[i].read).operands;
        summed.push_back({i, gradients[i].read});
        indices.insert(indices.end(), operands.begin(), operands.end());
    }
    Body to_memory(layout, Place::element, "at.");
    to_memory.compute(indices);
    for (const Entry& entry : summed)
        add(to_memory, layout, entry.read, "sum", "");
    const std::string term =
        summed.empty() ? "0" : formatted("joint.partial[{}] * d_modified", summed.front().index);
    return formatted(
               "constexpr bool kHasSharedGradient = {};\n"
               "__device__ inline float shared_gradient(const Joint& joint, float d_modified) "
               "{{\n    return {};\n}}\n",
               !summed.empty(), term) +
           device_function("void add_shared_gradient(const At& at, float sum)", to_memory);
}

std::vector<NodeId> staged_reads(const passes::Mod& mod, const plan::KernelConfig& config) {
    if (!has_backward_policies(config) || config.sums.key_width == 0) return {};
    std::vector<NodeId> reads = passes::row_reads(mod, config.sums.key_width);
    const std::vector<NodeId> columns = staged_columns(mod, config);
    reads.insert(reads.end(), columns.begin(), columns.end());
    return reads;
}

std::string emit_key_index_2d(const Layout& layout, const plan::KernelConfig& config,
                              const std::vector<passes::ReadGradient>& gradients) {
    if (config.sums.key_width == 0) return "";
    const passes::Mod& mod = layout.mod();
    const std::vector<NodeId> columns = staged_columns(mod, config);
    std::vector<NodeId> rows = staged_reads(mod, config);
    rows.resize(rows.size() - columns.size());
    const auto dtype = [&](NodeId read) {
        return mod.program.buffers[layout.node(read).symbol].dtype;
    };
    std::size_t bytes = 0;
    for (const NodeId read : columns)
        bytes = std::max(bytes, size_of(dtype(read)));
    Policy policy("KeyIndex2d");
    policy.constant("kWidth", config.sums.key_width);
    policy.constant("kRowReads", static_cast<int>(rows.size()));
    policy.constant("kColumnReads", static_cast<int>(columns.size()));
    policy.constant("kColumnBytes", static_cast<int>(bytes));
    policy.constant("kColumnsAreLinear", passes::are_columns_linear(mod, config.sums.key_width),
                    true);
    policy.constant("kReadsAreLinear", passes::are_reads_linear(mod, config.sums.key_width));
    policy.constant("kSumsQuotients",
                    has_sum(mod, config, gradients, passes::GradientSum::quotient));
    policy.constant("kSumsRemainders",
                    has_sum(mod, config, gradients, passes::GradientSum::remainder));
    policy.constant("kStagesSums", config.storage.stages_sums);
    std::string text = policy.text();
    const auto emit = [&](std::string_view form, const std::vector<NodeId>& reads) {
        if (!reads.empty()) text += formatted("template <int kRead> struct {};\n", form);
        for (std::size_t i = 0; i < reads.size(); ++i) {
            Body body(layout, Place::element, "at.");
            body.compute(layout.node(reads[i]).operands);
            body.line("return " +
                      element_address(body, reads[i],
                                      {Kind::buffer_data, layout.node(reads[i]).symbol},
                                      Kind::buffer_stride) +
                      ";");
            text += formatted("template <> struct {}<{}> {{\n    using Element = {};\n{}}};\n\n",
                              form, i, element_type(dtype(reads[i])),
                              member_function("const Element* address(const At& at)", body));
        }
    };
    emit("RowRead", rows);
    emit("ColumnRead", columns);
    return text;
}

std::string emit_distance_values(const Layout& layout, const plan::KernelConfig& config) {
    const std::vector<NodeId> values = passes::distance_values(layout.mod());
    Policy policy("TabulatedVectors");
    policy.constant("kByDistance", static_cast<int>(values.size()));
    if (config.kind == plan::KernelKind::expand)
        policy.member(member_function("float distance_value(const At& at, int index)",
                                      values_of(layout, values, "0")));
    return policy.text();
}

std::string emit_distance_factors(const Layout& layout,
                                  const std::vector<passes::ReadGradient>& gradients,
                                  passes::TileSums tile) {
    std::vector<NodeId> factors;
    for (const passes::ReadGradient& gradient : gradients)
        factors.push_back(passes::gradient_sum(layout.mod(), gradient, tile) ==
                                  passes::GradientSum::distance
                              ? passes::distance_factor(layout.mod(), gradient)
                              : ir::kNoNode);
    return device_function("float distance_factor(const At& at, int index)",
                           values_of(layout, factors, "1"));
}

std::string emit_grid_gradients(const Layout& layout, const plan::KernelConfig& config) {
    if (!config.sums.sums_grids) return "";
    const passes::Mod& mod = layout.mod();
    Policy policy("GridGradients");
    policy.constant("kPlaces", static_cast<int>(mod.digit_places.size()));
    const auto numbers = [&](std::string_view name, std::int64_t passes::DigitPlace::* of) {
        std::vector<int> values;
        for (const passes::DigitPlace& place : mod.digit_places)
            values.push_back(static_cast<int>(place.*of));
        policy.member(numbers_function(name, values));
    };
    numbers("width", &passes::DigitPlace::width);
    numbers("query_offset", &passes::DigitPlace::q_offset);
    numbers("key_offset", &passes::DigitPlace::kv_offset);
    const analysis::Assumptions conditions = passes::grid_conditions(mod);
    policy.constant("kHasConditions", !conditions.empty());
    for (const bool of_key : {false, true}) {
        Body body(layout, Place::element, "at.");
        std::string all;
        for (const auto& [condition, value] : conditions) {
            const bool uses_key = mod.dependence[condition].has(analysis::Dependence::kv);
            if (uses_key != of_key) continue;
            body.compute({condition});
            all += (all.empty() ? "" : " && ") +
                   formatted("{}{}", value ? "" : "!", body.text(condition));
        }
        if (all.empty()) continue;
        body.line("return " + all + ";");
        policy.function(formatted("bool takes_{}(const At& at)", of_key ? "key" : "query"), body);
    }
    return policy.text();
}

} // namespace flexc::cuda
