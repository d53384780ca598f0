#include "cuda/expressions.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <numbers>
#include <optional>

#include "passes/cost.h"
#include "passes/element_sums.h"
#include "plan/work.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using ir::Op;
using passes::Place;
using passes::Precision;
using Kind = passes::ArgumentSlot::Kind;

namespace {

// Expressions with more characters get a name, so that lines stay readable.
constexpr std::size_t kLongExpression = 60;

std::string_view spelling(Op op, Precision precision) {
    if (precision == Precision::rough) {
        if (op == Op::tanh) return "tanh_fast($x)";
        if (op == Op::sigmoid) return "flexc_rough_sigmoid($x)";
        if (op == Op::erf) return "flexc_rough_erf($x)";
    }
    if (precision >= Precision::flushed && op == Op::sqrt) return "sqrt_flushed($x)";
    if (precision != Precision::exact) {
        if (op == Op::fdiv) return "flexc_fast_divide($x, $y)";
        if (op == Op::exp) return "flexc_fast_exp($x)";
        if (op == Op::sigmoid) return "flexc_fast_sigmoid($x)";
        if (op == Op::softplus) return "flexc_fast_softplus($x)";
        if (op == Op::sqrt) return "sqrt_fast($x)";
    }
    return ir::info(op).cuda;
}

std::string_view plain_spelling(Op op) {
    return op == Op::ifloordiv ? "flexc_quotient($x, $y)" : "flexc_remainder($x, $y)";
}

// Returns the pattern of a 32-bit operation that may wrap; "" if the operation cannot.
std::string_view wrapping_spelling(Op op) {
    switch (op) {
    case Op::iadd: return "flexc_wrapped_sum($x, $y)";
    case Op::isub: return "flexc_wrapped_difference($x, $y)";
    case Op::imul: return "flexc_step($x, $y)";
    default: return "";
    }
}

// Whether the operand at `dollar` is a whole argument of a call, so that it needs no brackets.
bool is_call_argument(std::string_view pattern, std::size_t dollar) {
    if (dollar < 2 || dollar + 2 >= pattern.size()) return false;
    const char before = pattern[dollar - 1];
    const char after = pattern[dollar + 2];
    return (before == '(' || (before == ' ' && pattern[dollar - 2] == ',')) &&
           (after == ')' || after == ',');
}

// Writes an integer as text for the position first_q, first_kv: sums are expanded, everything else
// is taken as the body writes it.
class TextAtFirst {
  public:
    TextAtFirst(const Body& body, const Layout& layout) : body_(body), layout_(layout) {}

    // Returns nothing if the integer cannot be written so, or needs 64 bits.
    std::optional<std::string> of(NodeId id) {
        if (++work_ > kMaxWork) return {};
        const ir::Node& node = layout_.node(id);
        if (node.op == Op::q_idx) return "at.first_q";
        if (node.op == Op::kv_idx) return "at.first_kv";
        if (layout_.type(id) != CType::narrow) return {};
        const analysis::Dependence uses = layout_.mod().dependence[id];
        if ((uses.bits & analysis::kPositions) == 0) return body_.text_as(id, CType::narrow);
        if (node.op != Op::iadd && node.op != Op::isub) return {};
        const auto x = of(node.operands[0]);
        if (!x) return {};
        const auto y = of(node.operands[1]);
        if (!y) return {};
        return formatted("({} {} {})", *x, node.op == Op::iadd ? '+' : '-', *y);
    }

  private:
    // Limits the nodes visited, because shared expressions are written once for each use.
    static constexpr int kMaxWork = 64;

    const Body& body_;
    const Layout& layout_;
    int work_ = 0;
};

// Returns the field in which a head, a row or a column keeps its part of a read's address.
std::string part_name(Place place, std::string_view part, NodeId read) {
    return formatted("{}.{}_{}", passes::name(place), part, read);
}

// The prefix of an element's values in text.
constexpr std::string_view kAt = "at.";

// Returns the text with each value of `at` replaced by a name (at0, at1, ...), and these values in
// the order of their names.
std::pair<std::string, std::vector<std::string>> without_at(const std::string& text) {
    const auto is_name = [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
    };
    std::string result;
    std::vector<std::string> values;
    for (std::size_t i = 0; i < text.size();) {
        if (text.compare(i, kAt.size(), kAt) != 0 ||
            (i > 0 && (is_name(text[i - 1]) || text[i - 1] == '.'))) {
            result += text[i++];
            continue;
        }
        std::size_t end = i + kAt.size();
        while (end < text.size() && (is_name(text[end]) || text[end] == '.'))
            ++end;
        // Takes an element of an array, not the array: a function that is not inlined would need
        // all of it in memory.
        if (end < text.size() && text[end] == '[') end = text.find(']', end) + 1;
        const std::string value = text.substr(i, end - i);
        const auto known = std::ranges::find(values, value);
        result += formatted("at{}", known - values.begin());
        if (known == values.end()) values.push_back(value);
        i = end;
    }
    return {result, values};
}

} // namespace

std::string reciprocal_name(NodeId divisor) { return formatted("reciprocal_{}", divisor); }

Body::Body(const Layout& layout, Place here, std::string access)
    : layout_(&layout), here_(here), access_(std::move(access)) {}

bool Body::is_local(NodeId id) const {
    if (layout_->is_of_term(id) || counter_ != ir::kNoNode)
        return layout_->mod().counters[id] == counter_;
    if (layout_->is_free(id)) return false;
    // Places in staged tables are computed here, from tabulated values of keys.
    const bool is_of_key =
        reads_staged_ && layout_->wraps(id) && layout_->place(id) == Place::column;
    return is_of_key || layout_->place(id) == here_ || layout_->is_repeated(id);
}

void Body::compute(const std::vector<NodeId>& roots) {
    std::map<NodeId, int> uses; // of local nodes
    std::vector<NodeId> pending;
    const auto use = [&](NodeId id) {
        if (is_local(id) && !values_.contains(id) && ++uses[id] == 1) pending.push_back(id);
    };
    for (NodeId root : roots)
        use(root);
    while (!pending.empty()) {
        const NodeId id = pending.back();
        pending.pop_back();
        for (NodeId operand : needs(id))
            use(operand);
    }
    // Operands have smaller ids than their users, except those from which places in staged tables
    // are computed.
    const auto declare = [&](NodeId id, const auto& declare_first) -> void {
        if (values_.contains(id)) return;
        for (const NodeId operand : needs(id))
            if (uses.contains(operand)) declare_first(operand, declare_first);
        std::string expression = this->expression(id);
        const Op op = layout_->node(id).op;
        has_guesses_ = has_guesses_ || !int_of_log(id).empty();
        instructions_ +=
            passes::instructions_of(op, layout_->precision(id), layout_->type(id) == CType::wide);
        const bool is_long =
            uses.at(id) > 1 || op == Op::read || expression.size() > kLongExpression;
        if (is_long && op != Op::sum) {
            const std::string name = value_name(layout_->mod().program, id);
            line(std::string("const ") + spelling(layout_->type(id)) + " " + name + " = " +
                 unbracketed(expression) + ";");
            expression = name;
        }
        values_[id] = std::move(expression);
    };
    for (const auto& [id, count] : uses)
        declare(id, declare);
}

std::vector<NodeId> Body::needs(NodeId id) const {
    const ir::Node& node = layout_->node(id);
    if (const passes::StagedTable* table = staged_table(id)) {
        std::vector<NodeId> parts;
        const auto need = [&](NodeId part) {
            if (part != ir::kNoNode) parts.push_back(part);
        };
        need(table->key_bytes);
        need(table->split.parts.rest);
        for (const passes::AddressSplit::Index& index : checked_indices(*table)) {
            need(index.parts.query);
            need(index.parts.key);
            need(index.parts.rest);
            need(index.entries);
        }
        return parts;
    }
    if (is_narrow_distance(id)) return layout_->node(node.operands[0]).operands;
    if (node.op != Op::sum) return node.operands;
    // A sum needs its range, and the values that enter its terms.
    std::vector<NodeId> outside = layout_->node(node.operands[0]).operands;
    const std::vector<NodeId> entered = passes::entering(layout_->mod(), {node.operands[1]});
    outside.insert(outside.end(), entered.begin(), entered.end());
    return outside;
}

std::string Body::text(NodeId id) const {
    if (layout_->is_free(id)) return free_value(id);
    // A loop can use what its function has declared before it.
    if (const auto known = values_.find(id); known != values_.end()) return known->second;
    return access_ + std::string(passes::name(layout_->place(id))) + "." +
           value_name(layout_->mod().program, id);
}

std::string Body::text_as(NodeId id, CType type) const {
    const ir::Node& node = layout_->node(id);
    if (node.op == Op::const_int) return integer_literal(node.integer, type);
    const CType own = layout_->type(id);
    if (type == CType::wide && own == CType::narrow)
        return "flexc_wide(" + unbracketed(text(id)) + ")";
    if (type == CType::narrow && own == CType::wide)
        return "flexc_narrow(" + unbracketed(text(id)) + ")";
    return text(id);
}

std::string Body::argument(passes::ArgumentSlot slot) const {
    return access_ + "arguments." + layout_->field(slot);
}

std::string Body::free_value(NodeId id) const {
    const ir::Node& node = layout_->node(id);
    switch (node.op) {
    case Op::const_bool: return node.integer != 0 ? "true" : "false";
    case Op::const_int: return integer_literal(node.integer, layout_->type(id));
    case Op::const_real: return real_literal(node.real);
    case Op::score: return "score";
    case Op::q_idx: return access_ + "q";
    case Op::kv_idx: return access_ + "kv";
    case Op::size: return argument(layout_->slot_of_size(node.symbol));
    case Op::param: return argument({Kind::param, node.symbol});
    default: return access_ + std::string(ir::info(node.op).name); // b h h_kv
    }
}

std::string Body::expression(NodeId id) {
    switch (layout_->node(id).op) {
    case Op::read: return read(id);
    case Op::sum: return sum(id);
    case Op::q_len:
    case Op::kv_len:
    case Op::q_row:
    case Op::kv_row: return of_request(layout_->node(id).op);
    default: return operation(id);
    }
}

// Returns the text of a leaf whose value differs between requests.
std::string Body::of_request(Op leaf) const {
    const std::string sequence = formatted("{}[{}b]", argument({Kind::sequences}), access_);
    if (leaf == Op::q_row) return formatted("query_row({}, {}q)", sequence, access_);
    if (leaf == Op::kv_row)
        return formatted("Layouts::Keys(key_table({}, {}), {}, {}b).row({}kv)",
                         argument({Kind::key_numbers}), argument({Kind::key_table_size}), sequence,
                         access_, access_);
    return sequence + (leaf == Op::q_len ? ".q_len" : ".kv_len");
}

void Body::loop(NodeId counter, const std::function<void(Body&)>& fill) {
    const ir::Node& range = layout_->node(counter);
    const CType type = layout_->type(counter);
    line("#pragma unroll 1");
    line(formatted("for ({0} {1} = {2}; {1} < {3}; ++{1}) {{", spelling(type),
                   value_name(layout_->mod().program, counter),
                   unbracketed(text_as(range.operands[0], type)),
                   text_as(range.operands[1], type)));
    Body inside = *this;
    inside.text_.clear();
    inside.term(counter, fill);
    instructions_ = inside.instructions_;
    lines_of(inside);
    line("}");
}

void Body::lines_of(const Body& inner) {
    for (std::string_view rest = inner.text_; !rest.empty();) {
        const std::size_t end = rest.find('\n') + 1;
        line(std::string(rest.substr(0, end - 1)));
        rest.remove_prefix(end);
    }
}

void Body::term(NodeId counter, const std::function<void(Body&)>& fill) {
    Body inside = *this;
    inside.text_.clear();
    inside.counter_ = counter;
    inside.values_[counter] = value_name(layout_->mod().program, counter);
    fill(inside);
    instructions_ = inside.instructions_;
    text_ += inside.text_;
}

std::string Body::sum(NodeId id) {
    const ir::Node& node = layout_->node(id);
    const NodeId term = node.operands[1];
    const CType type = layout_->type(id);
    const std::string total = value_name(layout_->mod().program, id);
    line(formatted("{} {} = 0;", spelling(type), total));
    loop(node.operands[0], [&](Body& inside) {
        inside.compute({term});
        inside.line(formatted("{} += {};", total, unbracketed(inside.text_as(term, type))));
    });
    return total;
}

// Whether the node is a quotient or remainder of a value that is never negative by a positive
// constant, so that C++ operators compute it.
bool Body::is_plain(NodeId id) const {
    const ir::Node& node = layout_->node(id);
    if (node.op != Op::ifloordiv && node.op != Op::imod) return false;
    const ir::Node& divisor = layout_->node(node.operands[1]);
    return layout_->type(id) == CType::narrow && layout_->type(node.operands[0]) == CType::narrow &&
           divisor.op == Op::const_int && divisor.integer > 0 && divisor.integer <= INT32_MAX &&
           layout_->mod().ranges.of_node[node.operands[0]].low >= 0;
}

// Whether the node is the absolute difference of two 32-bit numbers, which may not fit into a
// signed 32-bit integer.
bool Body::is_narrow_distance(NodeId id) const {
    const ir::Node& node = layout_->node(id);
    if (node.op != Op::iabs || layout_->type(id) != CType::wide) return false;
    const NodeId difference = node.operands[0];
    const auto is_narrow = [&](NodeId operand) { return layout_->type(operand) == CType::narrow; };
    return layout_->node(difference).op == Op::isub && is_local(difference) &&
           std::ranges::all_of(layout_->node(difference).operands, is_narrow);
}

std::string Body::operation(NodeId id) const {
    const ir::Node& node = layout_->node(id);
    if (is_narrow_distance(id)) {
        const std::vector<NodeId>& ends = layout_->node(node.operands[0]).operands;
        return formatted("flexc_distance({}, {})", unbracketed(text(ends[0])),
                         unbracketed(text(ends[1])));
    }
    // All integer operands are converted to one width: the result's, or for a comparison that of
    // the widest operand.
    CType integers = layout_->type(id);
    if (ir::info(node.op).compares_integers()) {
        const bool wide = std::ranges::any_of(
            node.operands, [&](NodeId operand) { return layout_->type(operand) == CType::wide; });
        integers = wide ? CType::wide : CType::narrow;
    }
    if (std::string of_log = int_of_log(id); !of_log.empty()) return of_log;
    if (std::string of_sqrt = int_of_sqrt(id); !of_sqrt.empty()) return of_sqrt;
    if (std::string bounded = bounded_int_of_sqrt(id); !bounded.empty()) return bounded;
    if (node.op == Op::real_to_int && integers == CType::narrow)
        return "flexc_to_narrow_int(" + unbracketed(text(node.operands[0])) + ")";

    if (layout_->has_reciprocal(id))
        return formatted("({} * {})", text(node.operands[0]), reciprocal(node.operands[1]));

    if (layout_->has_integer_reciprocal(id)) {
        const NodeId divisor = node.operands[1];
        const std::string quotient = formatted(
            "{}, {}, {}", unbracketed(text_as(node.operands[0], CType::narrow)),
            argument({Kind::reciprocal, divisor}), argument({Kind::divisor_sign, divisor}));
        return node.op == Op::ifloordiv ? formatted("flexc_floor_divide({})", quotient)
                                        : formatted("flexc_floor_modulo({}, {})", quotient,
                                                    unbracketed(text_as(divisor, CType::wide)));
    }

    const auto operand_text = [&](NodeId operand) {
        const bool is_integer = layout_->node(operand).type == ir::Type::integer;
        return is_integer && node.op != Op::int_to_real ? text_as(operand, integers)
                                                        : text(operand);
    };
    if (node.op == Op::int_to_real && layout_->is_fast(id))
        if (std::string split = split_position(node.operands[0]); !split.empty()) return split;
    const std::string_view pattern = is_plain(id) ? plain_spelling(node.op)
                                     : layout_->wraps(id) && !wrapping_spelling(node.op).empty()
                                         ? wrapping_spelling(node.op)
                                         : spelling(node.op, layout_->precision(id));
    std::string result;
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        if (pattern[i] == '$' && i + 1 < pattern.size()) {
            const bool whole = is_call_argument(pattern, i);
            std::string text =
                operand_text(node.operands[static_cast<std::size_t>(pattern[++i] - 'x')]);
            result += whole ? unbracketed(std::move(text)) : text;
        } else {
            result += pattern[i];
        }
    }
    return result;
}

std::string Body::reciprocal(NodeId divisor) const {
    const ir::Node& node = layout_->node(divisor);
    if (node.op == Op::const_real) return real_literal(1 / node.real);
    return formatted("{}{}.{}", access_, passes::name(layout_->place(divisor)),
                     reciprocal_name(divisor));
}

// Returns the text of int(log(x) / c) or int(log(x) * c) by a function that evaluates the logarithm
// exactly only for the few x that need it; "" if the node is neither.
std::string Body::int_of_log(NodeId id) const {
    if (!guesses_logs_ || layout_->node(id).op != Op::real_to_int ||
        layout_->type(id) != CType::narrow)
        return "";
    const NodeId scaled = layout_->node(id).operands[0];
    const ir::Node& scale = layout_->node(scaled);
    NodeId log = scaled;
    double factor = 1;
    if (scale.op == Op::fdiv || scale.op == Op::fmul) {
        const bool is_first =
            scale.op == Op::fmul && layout_->node(scale.operands[0]).op == Op::const_real;
        const ir::Node& constant = layout_->node(scale.operands[is_first ? 0 : 1]);
        if (constant.op != Op::const_real) return "";
        factor = scale.op == Op::fdiv ? 1 / constant.real : constant.real;
        log = scale.operands[is_first ? 1 : 0];
    }
    constexpr double kLargest = 1 << 16;
    if (layout_->node(log).op != Op::log || !(std::fabs(factor) <= kLargest) ||
        std::fabs(factor) < 1 / kLargest)
        return "";
    return formatted("flexc_int_of_log({}, {}, *{}doubt)",
                     unbracketed(text(layout_->node(log).operands[0])),
                     real_literal(factor * std::numbers::ln2), access_);
}

// Returns the text of x if the node is int(sqrt(x)) and x is available here; otherwise "".
std::string Body::square_of_int_of_sqrt(NodeId id) const {
    if (layout_->node(id).op != Op::real_to_int || layout_->type(id) != CType::narrow) return "";
    const ir::Node& root = layout_->node(layout_->node(id).operands[0]);
    if (root.op != Op::sqrt) return "";
    const NodeId square = root.operands[0];
    if (is_local(square) && !values_.contains(square)) return "";
    return unbracketed(text(square));
}

// Returns the text of int(sqrt(x)) without a branch; "" if the node is something else.
std::string Body::int_of_sqrt(NodeId id) const {
    const std::string square = square_of_int_of_sqrt(id);
    return square.empty() ? "" : formatted("flexc_int_of_sqrt({})", square);
}

// Returns the text of min(int(sqrt(x)), constant) without a branch or a conversion; "" if the node
// is something else.
std::string Body::bounded_int_of_sqrt(NodeId id) const {
    if (layout_->node(id).op != Op::imin || layout_->type(id) != CType::narrow) return "";
    constexpr std::int64_t kMost = 1 << 20; // the limit of flexc_bounded_int_of_sqrt()
    for (const std::size_t side : {0U, 1U}) {
        const ir::Node& most = layout_->node(layout_->node(id).operands[side]);
        if (most.op != Op::const_int || most.integer < 0 || most.integer > kMost) continue;
        const std::string square = square_of_int_of_sqrt(layout_->node(id).operands[1 - side]);
        if (!square.empty())
            return formatted("flexc_bounded_int_of_sqrt({}, {})", square, most.integer);
    }
    return "";
}

// Returns the text of an integer that is affine in q and kv, as a float split by positions; "" if
// it cannot be split.
std::string Body::split_position(NodeId integer) const {
    if (!layout_->splits_positions() || here_ != Place::element || access_.empty()) return "";
    if (layout_->type(integer) != CType::narrow) return "";
    const analysis::AffineForm& form = layout_->mod().affine[integer];
    if ((form.q == 0 && form.kv == 0) || form.rest_uses(analysis::kPositions)) return "";
    const auto at_first = TextAtFirst(*this, *layout_).of(integer);
    if (!at_first) return "";
    return formatted("(static_cast<float>({}) + static_cast<float>({} * (at.q - at.first_q) + {} * "
                     "(at.kv - at.first_kv)))",
                     *at_first, form.q, form.kv);
}

const passes::StagedTable* Body::staged_table(NodeId read) const {
    return reads_staged_ ? layout_->staged_table(read) : nullptr;
}

std::vector<passes::AddressSplit::Index>
Body::checked_indices(const passes::StagedTable& table) const {
    std::vector<passes::AddressSplit::Index> checked;
    for (std::size_t i = 0; i < table.split.indices.size(); ++i)
        if (table.is_checked_by_element(i) || (checks_all_ && table.is_checked_by_tile(i)))
            checked.push_back(table.split.indices[i]);
    return checked;
}

// The parts that change least often come first, as in by_place().
std::string Body::read_staged(const passes::StagedTable& table) const {
    const auto narrow = [&](NodeId part) { return unbracketed(text_as(part, CType::narrow)); };
    std::string address = formatted("{}tables[{}]", access_, layout_->staged_index(table));
    if (table.key_bytes != ir::kNoNode)
        address = formatted("flexc_shifted({}, {})", address, narrow(table.key_bytes));
    if (table.split.parts.rest != ir::kNoNode)
        address = formatted("flexc_entry({}, {})", address, narrow(table.split.parts.rest));
    std::string inside;
    for (const passes::AddressSplit::Index& index : checked_indices(table)) {
        const auto& [query, key, rest] = index.parts;
        const bool is_alone = query == ir::kNoNode && key == ir::kNoNode;
        if (is_alone && layout_->type(rest) == CType::wide) {
            inside += formatted("{}flexc_inside({}, {})", inside.empty() ? "" : " & ",
                                unbracketed(text(rest)),
                                unbracketed(text_as(index.entries, CType::wide)));
            continue;
        }
        std::string sum;
        for (const NodeId part : {index.parts.query, index.parts.key, index.parts.rest})
            if (part != ir::kNoNode)
                sum = sum.empty() ? narrow(part)
                                  : formatted("flexc_wrapped_sum({}, {})", sum, narrow(part));
        inside += formatted("{}flexc_inside({}, {})", inside.empty() ? "" : " & ", sum,
                            narrow(index.entries));
    }
    return inside.empty() ? formatted("flexc_read_table({})", address)
                          : formatted("flexc_read_table_if({}, {})", inside, address);
}

std::string Body::read(NodeId id) const {
    if (const passes::StagedTable* table = staged_table(id)) return read_staged(*table);
    const std::string address = this->address(id);
    std::string element = "flexc_read(" + address + ")";
    const std::string inside = this->inside(id);
    if (inside.empty()) return element;
    if (reads_without_branches_ && layout_->type(id) == CType::real)
        return "flexc_read_if(" + unbracketed(inside) + ", " + address + ")";
    switch (layout_->type(id)) {
    case CType::real: return inside + " ? " + element + " : 0.0f";
    case CType::boolean: return inside + " ? " + element + " : false";
    case CType::narrow:
    case CType::wide: break;
    }
    return inside + " ? " + element + " : 0";
}

// Returns the terms sorted by place, earlier places first. With a bracket for each place, the CUDA
// compiler moves each bracket out of the loops that it does not depend on.
std::vector<std::pair<Place, std::string>>
Body::by_place(NodeId read, const std::vector<std::string>& terms) const {
    std::vector<std::pair<Place, std::string>> sorted;
    const auto& indices = layout_->node(read).operands;
    for (std::size_t i = 0; i < indices.size(); ++i)
        if (!terms[i].empty()) sorted.emplace_back(layout_->place(indices[i]), terms[i]);
    std::ranges::stable_sort(sorted, {}, &std::pair<Place, std::string>::first);
    return sorted;
}

std::string Body::inside(NodeId read) const {
    const ir::Node& node = layout_->node(read);
    const ir::Buffer& buffer = layout_->mod().program.buffers[node.symbol];
    const std::vector<bool>& proven = layout_->mod().ranges.in_range[read];
    std::vector<std::string> terms(node.operands.size());
    for (std::uint32_t dim = 0; dim < node.operands.size(); ++dim) {
        if (dim < proven.size() && proven[dim]) continue;
        const ir::Dim& extent = buffer.dims[dim];
        const NodeId index = node.operands[dim];
        const bool small = extent.is_constant() && extent.constant <= INT32_MAX;
        const CType type =
            small && layout_->type(index) != CType::wide ? CType::narrow : CType::wide;
        terms[dim] = "flexc_inside(" + unbracketed(text_as(index, type)) + ", " +
                     (extent.is_constant() ? integer_literal(extent.constant, type)
                                           : argument({Kind::buffer_extent, node.symbol, dim})) +
                     ")";
    }
    std::string result;
    const auto sorted = by_place(read, terms);
    for (const auto& [place, term] : sorted)
        result += (result.empty() ? "" : " & ") + term;
    return sorted.size() > 1 ? "(" + result + ")" : result;
}

// Returns the terms of an index that is a sum, so that places before the element can compute some
// of them; otherwise the index itself.
std::vector<Body::IndexTerm> Body::index_terms(NodeId index) const {
    constexpr std::size_t kMostTerms = 8;
    std::vector<IndexTerm> terms, pending = {{index, false}};
    while (!pending.empty()) {
        const IndexTerm term = pending.back();
        pending.pop_back();
        const ir::Node& node = layout_->node(term.node);
        const bool is_sum = node.op == Op::iadd || node.op == Op::isub;
        if (!is_sum || layout_->place(term.node) != Place::element) {
            terms.push_back(term);
            continue;
        }
        if (pending.size() + terms.size() > kMostTerms) return {{index, false}};
        pending.push_back({node.operands[1], term.is_negative != (node.op == Op::isub)});
        pending.push_back({node.operands[0], term.is_negative});
    }
    return terms;
}

std::string Body::offset_part(NodeId read, Kind stride, Place place) const {
    const ir::Node& node = layout_->node(read);
    std::string part;
    for (std::uint32_t dim = 0; dim < node.operands.size(); ++dim) {
        if (layout_->place(node.operands[dim]) < Place::row) continue;
        for (const IndexTerm& term : index_terms(node.operands[dim])) {
            // Terms that are constant for a head are added to the row's part.
            const Place known = std::max(layout_->place(term.node), Place::row);
            const ir::Node& value = layout_->node(term.node);
            if (known != place || (value.op == Op::const_int && value.integer == 0)) continue;
            part += formatted("{}flexc_step({}, {})",
                              term.is_negative ? " - "
                              : part.empty()   ? ""
                                               : " + ",
                              unbracketed(text_as(term.node, CType::narrow)),
                              argument({stride, node.symbol, dim}));
        }
    }
    return part;
}

bool Body::has_narrow_offset(NodeId read) const {
    const std::vector<NodeId>& narrow = layout_->narrow_reads();
    return here_ == Place::element && counter_ == ir::kNoNode &&
           std::ranges::find(narrow, read) != narrow.end();
}

std::string Body::narrow_offset(NodeId read, Kind stride) const {
    std::string result;
    for (const Place place : {Place::row, Place::column, Place::element}) {
        std::string part = offset_part(read, stride, place);
        if (part.empty()) continue;
        if (place != Place::element && stride == Kind::buffer_stride)
            part = access_ + part_name(place, "offset", read);
        result += (result.empty() ? "(" : " + (") + part + ")";
    }
    return result;
}

std::string Body::address(NodeId read) const {
    const std::string data = argument({Kind::buffer_data, layout_->node(read).symbol});
    if (has_narrow_offset(read))
        return access_ + part_name(Place::head, "base", read) + " + (" +
               narrow_offset(read, Kind::buffer_stride) + ")";
    const std::string offset = this->offset(read, Kind::buffer_stride);
    return data + (offset.empty() ? "" : " + " + offset);
}

std::string Body::base(NodeId read) const {
    const std::string data = argument({Kind::buffer_data, layout_->node(read).symbol});
    const std::string offset = offset_of_head(read, Kind::buffer_stride);
    return data + (offset.empty() ? "" : " + " + offset);
}

// Returns the offset of the indices that are constant for a head; of all indices if the offset
// needs 64 bits.
std::string Body::offset_of_head(NodeId read, Kind stride) const {
    const ir::Node& node = layout_->node(read);
    const std::vector<NodeId>& narrow = layout_->narrow_reads();
    const bool of_head_alone = std::ranges::find(narrow, read) != narrow.end() &&
                               (here_ != Place::element || has_narrow_offset(read));
    std::vector<std::string> terms(node.operands.size());
    for (std::uint32_t dim = 0; dim < node.operands.size(); ++dim) {
        const NodeId index = node.operands[dim];
        if (layout_->node(index).op == Op::const_int && layout_->node(index).integer == 0) continue;
        if (of_head_alone && layout_->place(index) >= Place::row) continue;
        terms[dim] = text_as(index, CType::wide) + " * " + argument({stride, node.symbol, dim});
    }
    std::string result;
    const auto sorted = by_place(read, terms);
    for (std::size_t i = 0; i < sorted.size();) {
        const Place place = sorted[i].first;
        std::string group;
        for (; i < sorted.size() && sorted[i].first == place; ++i)
            group += (group.empty() ? "" : " + ") + sorted[i].second;
        result += (result.empty() ? "(" : " + (") + group + ")";
    }
    return result;
}

std::string Body::offset(NodeId read, Kind stride) const {
    std::string result = offset_of_head(read, stride);
    if (has_narrow_offset(read))
        result += (result.empty() ? "(" : " + (") + narrow_offset(read, stride) + ")";
    // Brackets around the sum, unless a single place has all of it.
    if (result.empty() || unbracketed(result) != result) return result;
    return "(" + result + ")";
}

namespace {

// Emits a function that is not inlined, and a function with this signature that calls it with those
// values of `at` that it needs (`written` turns their names into text) and, unless `parameter` is
// "", with a float.
std::string called_function(std::string_view type, std::string_view name,
                            std::string_view signature, std::string_view parameter,
                            const Body& body,
                            const std::function<std::string(std::string)>& written) {
    const auto [text, values] = without_at(body.statements());
    std::vector<std::string> types, parameters, arguments;
    for (std::size_t i = 0; i < values.size(); ++i) {
        types.push_back(formatted("typename T{}", i));
        parameters.push_back(formatted("T{0} at{0}", i));
        arguments.push_back(written(values[i]));
    }
    if (!parameter.empty()) {
        parameters.push_back(formatted("float {}", parameter));
        arguments.emplace_back(parameter);
    }
    return formatted("{}static __device__ __noinline__ {} long_{}({}) {{\n{}}}\n"
                     "__device__ inline {} {{\n    return long_{}({});\n}}\n\n",
                     types.empty() ? "" : formatted("template <{}>\n", joined(types, ", ")), type,
                     name, joined(parameters, ", "), text, signature, name,
                     joined(arguments, ", "));
}

} // namespace

std::string element_function(std::string_view type, std::string_view name,
                             std::string_view parameter, const Body& body,
                             int instructions_beside) {
    const std::string more = parameter.empty() ? "" : formatted(", float {}", parameter);
    const std::string signature = formatted("{} {}(const At& at{})", type, name, more);
    if (body.instructions() + instructions_beside <= plan::kMostWrittenOut)
        return device_function(signature, body);
    return called_function(type, name, signature, parameter, body,
                           [](std::string value) { return value; });
}

std::string called_place_function(std::string_view type, std::string_view name,
                                  std::string_view parameters, const Body& body) {
    return called_function(type, name, formatted("{} {}({})", type, name, parameters), "", body,
                           [](const std::string& value) {
                               std::string text = value;
                               for (std::size_t at = 0; (at = text.find(kAt, at)) != text.npos;)
                                   if (at == 0 || text[at - 1] == '[')
                                       text.erase(at, kAt.size());
                                   else
                                       ++at;
                               return text;
                           });
}

std::string device_function(std::string_view signature, const Body& body) {
    return formatted("__device__ inline {} {{\n{}}}\n\n", signature, body.statements());
}

} // namespace flexc::cuda
