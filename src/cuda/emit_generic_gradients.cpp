#include "cuda/emit_generic_gradients.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "cuda/kernel_gradients.h"
#include "cuda/policy.h"
#include "passes/captured_read.h"
#include "passes/element_sums.h"
#include "passes/term_gradient.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using passes::Place;
using Kind = passes::ArgumentSlot::Kind;

namespace {

// Of a gradient that elements add.
struct Partial {
    std::size_t index; // in Joint::partial
    NodeId read;
};

void append_indices(std::vector<NodeId>& to, const SymbolTable& symbols, NodeId read) {
    const std::vector<NodeId>& indices = symbols.node(read).operands;
    to.insert(to.end(), indices.begin(), indices.end());
}

// Adds the value to the element that a read names, if the condition holds.
void add(Body& body, const SymbolTable& symbols, NodeId read, const std::string& value,
         const std::string& condition) {
    const std::uint32_t buffer = symbols.node(read).symbol;
    const std::string data = body.argument({Kind::gradient_data, buffer});
    const std::string offset = body.offset(read, Kind::gradient_stride);
    const std::string inside = body.inside(read);
    const std::string guard = condition.empty() ? inside
                              : inside.empty()  ? condition
                                                : condition + " && " + inside;
    body.line((guard.empty() ? "" : "if (" + unbracketed(guard) + ") ") + "flexc_accumulate(" +
              data + (offset.empty() ? "" : " + " + offset) + ", " + value + ");");
}

// Adds the gradients of one counter's terms, in a loop over them. What the partials share, and the
// score, come with the joint values.
void add_terms(Body& each, const SymbolTable& symbols, NodeId counter,
               const std::vector<passes::ReadGradient>& gradients) {
    each.loop(counter, [&](Body& inside) {
        inside.compute(gradient_roots(symbols.mod(), gradients, {&passes::ReadGradient::partial}));
        for (const passes::ReadGradient& gradient : gradients)
            add(inside, symbols, gradient.read, inside.text(gradient.partial) + " * d_modified",
                "");
    });
}

// Makes the values that terms share, and the score if their indices use it, known to the body.
void take_carried(Body& body, const SymbolTable& symbols, const std::vector<NodeId>& given) {
    for (std::size_t i = 0; i < given.size(); ++i) {
        const std::string value = formatted("joint.carried[{}]", i);
        if (symbols.node(given[i]).op == ir::Op::score)
            body.line(formatted("const float score = {};", value));
        else
            body.provide(given[i], value);
    }
}

// A gradient whose elements at the ends of a clamp are summed along lines of a tile.
struct Ends {
    Partial partial;
    const passes::ShiftedRead* read;

    // The last index at each end.
    std::vector<NodeId> bounds() const {
        std::vector<NodeId> all;
        for (const NodeId bound : {read->least, read->most})
            if (bound != ir::kNoNode) all.push_back(bound);
        return all;
    }
    // Whether an element is at some end.
    std::string condition(Body& body, const SymbolTable& symbols) const {
        std::string any;
        for (const NodeId bound : bounds())
            any += (any.empty() ? "" : " || ") + is_at(body, symbols, bound);
        return any;
    }
    std::string is_at(Body& body, const SymbolTable& symbols, NodeId bound) const {
        const NodeId index = symbols.node(partial.read).operands.back();
        body.compute({index, bound});
        return formatted("{} == {}", body.text(index), body.text(bound));
    }
};

// Returns the shifted read of such a gradient; null for others.
const passes::ShiftedRead* read_with_ends(const passes::Mod& mod,
                                          const passes::ReadGradient& gradient) {
    if (!gradient.is_shifted) return nullptr;
    const auto found =
        std::ranges::find(mod.shifted_reads, gradient.read, &passes::ShiftedRead::read);
    return found->is_clamped() ? &*found : nullptr;
}

void append_indices(std::vector<NodeId>& to, const SymbolTable& symbols,
                    const std::vector<Partial>& of_element) {
    for (const Partial& partial : of_element)
        append_indices(to, symbols, partial.read);
}

// Adds to the gradients of what an element reads; elements at a clamp's end are left to the sums of
// their lines. value: what to add, of a partial derivative.
template <typename Value>
void add_element(Body& body, const SymbolTable& symbols, const std::vector<Partial>& of_element,
                 const std::vector<Ends>& ends, Value value) {
    for (const Partial& partial : of_element) {
        std::string is_within;
        for (const Ends& other : ends)
            if (other.partial.read == partial.read)
                is_within = formatted("!({})", other.condition(body, symbols));
        add(body, symbols, partial.read, value(partial), is_within);
    }
}

// Returns whether all have the same derivative and find their places without the score, so that
// they can be added after a tile's other elements.
bool can_be_added_later(const SymbolTable& symbols,
                        const std::vector<passes::ReadGradient>& gradients,
                        const std::vector<Partial>& of_element) {
    return !of_element.empty() && std::ranges::all_of(of_element, [&](const Partial& one) {
        return gradients[one.index].partial == gradients[of_element.front().index].partial &&
               !symbols.mod().dependence[one.read].has(analysis::Dependence::score);
    });
}

// The policy of gradients that are added after a tile's other elements.
std::string added_gradients(const SymbolTable& symbols, const std::vector<Partial>& of_element,
                            const std::vector<Ends>& ends) {
    std::vector<NodeId> indices;
    append_indices(indices, symbols, of_element);
    Body body(symbols, Place::element, "at.");
    body.compute(indices);
    add_element(body, symbols, of_element, ends, [](const Partial&) { return "value"; });
    Policy policy("AddedGradients");
    policy.constant("kPartial", static_cast<int>(of_element.front().index), -1);
    policy.function("void add(const At& at, float value)", body);
    return policy.text();
}

// Adds an element's gradients to memory. of_terms: those of sums' terms.
Body adding(const SymbolTable& symbols, const std::vector<NodeId>& given,
            const std::vector<Partial>& of_element, const std::vector<Ends>& ends,
            const std::vector<passes::ReadGradient>& of_terms) {
    const auto terms = by_counter(symbols.mod(), of_terms);
    std::vector<NodeId> roots;
    append_indices(roots, symbols, of_element);
    for (const auto& [counter, gradients] : terms) {
        const std::vector<NodeId> entered =
            passes::entering(symbols.mod(), gradient_roots(symbols.mod(), gradients,
                                                           {&passes::ReadGradient::partial}));
        roots.insert(roots.end(), entered.begin(), entered.end());
    }
    Body body(symbols, Place::element, "at.");
    take_carried(body, symbols, given);
    body.compute(roots);
    add_element(body, symbols, of_element, ends, [](const Partial& partial) {
        return formatted("joint.partial[{}] * d_modified", partial.index);
    });
    for (const auto& [counter, gradients] : terms)
        add_terms(body, symbols, counter, gradients);
    return body;
}

// Adds the sum of the elements of a line that are at an end.
void flush_end(Body& flush, const SymbolTable& symbols, NodeId read, NodeId bound,
               const std::string& sum) {
    Body of_end(symbols, Place::element, "at.");
    of_end.compute({bound});
    of_end.provide(symbols.node(read).operands.back(), of_end.text(bound));
    std::vector<NodeId> indices;
    append_indices(indices, symbols, read);
    of_end.compute(indices);
    add(of_end, symbols, read, sum, sum + " != 0");
    flush.line("{");
    flush.lines_of(of_end);
    flush.line("}");
}

// The policy of gradients that are summed along a line of a tile. ends: of the lines' clamps.
std::string line_gradients(const SymbolTable& symbols, std::string_view name,
                           const std::vector<Partial>& of_line, const std::vector<Ends>& ends) {
    if (of_line.empty() && ends.empty()) return "";
    Body sum(symbols, Place::element, "at."), flush(symbols, Place::element, "at.");
    std::vector<NodeId> indices;
    for (const Partial& partial : of_line)
        append_indices(indices, symbols, partial.read);
    flush.compute(indices);
    for (std::size_t i = 0; i < of_line.size(); ++i) {
        sum.line(formatted("sums[{}] += joint.partial[{}] * d_modified;", i, of_line[i].index));
        add(flush, symbols, of_line[i].read, formatted("sums[{}]", i), "");
    }
    Body sum_ends(symbols, Place::element, "at.");
    std::size_t count = of_line.size();
    for (const Ends& of_read : ends) {
        std::string otherwise;
        for (const NodeId bound : of_read.bounds()) {
            const std::string total = formatted("sums[{}]", count++);
            const std::string is_at = of_read.is_at(sum_ends, symbols, bound);
            sum_ends.line(formatted("{}if ({}) {} += joint.partial[{}] * d_modified;", otherwise,
                                    is_at, total, of_read.partial.index));
            otherwise = "else ";
            flush_end(flush, symbols, of_read.partial.read, bound, total);
        }
    }
    Policy policy(name);
    policy.constant("kCount", static_cast<int>(count));
    if (!of_line.empty())
        policy.function("void sum(const Joint& joint, float d_modified, float* sums)", sum);
    if (!ends.empty())
        policy.function("void sum_ends(const At& at, const Joint& joint, float d_modified, float* "
                        "sums)",
                        sum_ends);
    policy.function("void flush(const At& at, const float* sums)", flush);
    return policy.text();
}

// Sums those of a head in a thread's registers, and adds a warp's sums to memory.
Body summing(const SymbolTable& symbols, const std::vector<Partial>& of_head) {
    Body body(symbols, Place::element, "at.");
    for (std::size_t i = 0; i < of_head.size(); ++i)
        body.line(
            formatted("sums.sum[{}] += joint.partial[{}] * d_modified;", i, of_head[i].index));
    return body;
}
Body flushing(const SymbolTable& symbols, const std::vector<Partial>& of_head) {
    Body body = Body::after_head(symbols);
    if (!of_head.empty()) body.line("const bool first_lane = threadIdx.x % 32 == 0;");
    for (std::size_t i = 0; i < of_head.size(); ++i) {
        body.line(formatted("const float total_{} = flexc_warp_sum(sums.sum[{}]);", i, i));
        add(body, symbols, of_head[i].read, formatted("total_{}", i), "first_lane");
        body.line(formatted("sums.sum[{}] = 0;", i));
    }
    return body;
}

} // namespace

std::vector<NodeId> carried(const SymbolTable& symbols,
                            const std::vector<passes::ReadGradient>& terms,
                            const std::vector<passes::ReadGradient>& gradients) {
    std::vector<NodeId> factors;
    for (const passes::ReadGradient& gradient : terms)
        factors.push_back(gradient.element_factor);
    for (const passes::ReadGradient& gradient : gradients)
        if (passes::is_term_by_element(symbols.mod(), gradient))
            factors.push_back(gradient.partial);
    const bool uses_score =
        std::ranges::any_of(gradients, [&](const passes::ReadGradient& gradient) {
            return symbols.mod().dependence[gradient.read].has(analysis::Dependence::score);
        });
    return passes::carried_values(symbols.mod(), factors, uses_score);
}

std::string emit_generic_gradients(const SymbolTable& symbols,
                                   const std::vector<passes::ReadGradient>& gradients,
                                   const std::vector<NodeId>& given, passes::TileSums tile) {
    std::vector<Partial> of_head, of_row, of_column, of_element;
    std::vector<Ends> of_row_ends, of_column_ends;
    std::vector<passes::ReadGradient> terms_by_element;
    std::size_t of_terms = 0;
    const auto partials_of = [&](Place place) -> std::vector<Partial>& {
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
        const passes::GradientSum sum = passes::gradient_sum(symbols.mod(), gradients[i], tile);
        if (sum == passes::GradientSum::table || sum == passes::GradientSum::batch) continue;
        if (!symbols.is_of_term(read))
            partials_of(symbols.place(read)).push_back({i, read});
        else if (passes::is_term_by_element(symbols.mod(), gradients[i]))
            terms_by_element.push_back(gradients[i]);
        of_terms += symbols.is_of_term(read);
        if (const passes::ShiftedRead* const shifted = read_with_ends(symbols.mod(), gradients[i]))
            (shifted->by_key ? of_column_ends : of_row_ends).push_back({{i, read}, shifted});
    }
    std::vector<Ends> ends = of_row_ends;
    ends.insert(ends.end(), of_column_ends.begin(), of_column_ends.end());
    const std::size_t element_count = of_element.size() + of_terms;
    std::string added;
    if (can_be_added_later(symbols, gradients, of_element))
        added = added_gradients(symbols, std::exchange(of_element, {}), ends);
    return formatted("constexpr int kHeadGradients = {}, kElementGradients = {};\n"
                     "struct GradientSums {{\n"
                     "    float sum[kHeadGradients ? kHeadGradients : 1];\n}};\n\n",
                     of_head.size(), element_count) +
           added + line_gradients(symbols, "RowGradients", of_row, of_row_ends) +
           line_gradients(symbols, "ColumnGradients", of_column, of_column_ends) +
           device_function("void add_gradients(const At& at, const Joint& joint, float d_modified)",
                           adding(symbols, given, of_element, ends, terms_by_element)) +
           device_function("void sum_gradients(const At& at, const Joint& joint, float d_modified, "
                           "GradientSums& sums)",
                           summing(symbols, of_head)) +
           device_function("void flush_gradients(const Arguments& arguments, const Launch& launch, "
                           "const Head& head, int b, int h, int h_kv, GradientSums& sums)",
                           flushing(symbols, of_head));
}

std::string emit_shared_gradient(const SymbolTable& symbols,
                                 const std::vector<passes::ReadGradient>& gradients,
                                 passes::TileSums tile) {
    std::vector<Partial> summed;
    std::vector<NodeId> indices;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        if (passes::gradient_sum(symbols.mod(), gradients[i], tile) != passes::GradientSum::batch)
            continue;
        summed.push_back({i, gradients[i].read});
        append_indices(indices, symbols, gradients[i].read);
    }
    Body to_memory(symbols, Place::element, "at.");
    to_memory.compute(indices);
    bool share_addresses = false;
    for (const Partial& partial : summed) {
        if (passes::has_own_addresses(*passes::captured_read(symbols.mod(), partial.read))) {
            add(to_memory, symbols, partial.read, "sum", "");
        } else {
            to_memory.line("shared.add(" + to_memory.gradient_address(partial.read) + ", sum);");
            share_addresses = true;
        }
    }
    const std::string term =
        summed.empty() ? "0" : formatted("joint.partial[{}] * d_modified", summed.front().index);
    return formatted(
               "constexpr bool kHasSharedGradient = {}, kSharesAddresses = {};\n"
               "__device__ inline float shared_gradient(const Joint& joint, float d_modified) "
               "{{\n    return {};\n}}\n",
               !summed.empty(), share_addresses, term) +
           "template <typename Sums>\n" +
           device_function("void add_shared_gradient(const At& at, float sum, const Sums& shared)",
                           to_memory);
}

} // namespace flexc::cuda
