#include "cuda/expressions.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <optional>

#include "passes/cost.h"
#include "passes/element_sums.h"
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
    TextAtFirst(const Body& body, const SymbolTable& symbols) : body_(body), symbols_(symbols) {}

    // Returns nothing if the integer cannot be written so, or needs 64 bits.
    std::optional<std::string> of(NodeId id) {
        if (++work_ > kMaxWork) return {};
        const ir::Node& node = symbols_.node(id);
        if (node.op == Op::q_idx) return "at.first_q";
        if (node.op == Op::kv_idx) return "at.first_kv";
        if (symbols_.type(id) != CType::narrow) return {};
        const analysis::Dependence uses = symbols_.mod().dependence[id];
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
    const SymbolTable& symbols_;
    int work_ = 0;
};

} // namespace

Body::Body(const SymbolTable& symbols, Place here, std::string access)
    : symbols_(&symbols), here_(here), access_(std::move(access)) {}

bool Body::is_local(NodeId id) const {
    if (symbols_->is_of_term(id) || counter_ != ir::kNoNode)
        return symbols_->mod().counters[id] == counter_;
    if (symbols_->is_free(id)) return false;
    // Places in staged tables are computed here, from tabulated values of keys.
    const bool is_of_key =
        reads_staged_ && symbols_->wraps(id) && symbols_->place(id) == Place::column;
    return is_of_key || symbols_->place(id) == here_ || symbols_->is_repeated(id);
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
        const Op op = symbols_->node(id).op;
        has_guesses_ = has_guesses_ || !int_of_log(id).empty();
        instructions_ +=
            passes::instructions_of(op, symbols_->precision(id), symbols_->type(id) == CType::wide);
        reads_ += op == Op::read;
        const bool is_long =
            uses.at(id) > 1 || op == Op::read || expression.size() > kLongExpression;
        if (is_long && op != Op::sum) {
            const std::string name = value_name(symbols_->mod().program, id);
            line(std::string("const ") + spelling(symbols_->type(id)) + " " + name + " = " +
                 unbracketed(expression) + ";");
            expression = name;
        }
        values_[id] = std::move(expression);
    };
    for (const auto& [id, count] : uses)
        declare(id, declare);
}

std::vector<NodeId> Body::needs(NodeId id) const {
    const ir::Node& node = symbols_->node(id);
    if (const passes::StagedTable* table = staged_table(id)) {
        std::vector<NodeId> parts;
        const auto need = [&](NodeId part) {
            if (part != ir::kNoNode) parts.push_back(part);
        };
        if (reads_any_address(*table)) {
            need(table->of_any.place);
            need(table->split.parts.query);
        } else {
            need(table->key_bytes);
            need(table->split.parts.rest);
        }
        for (const passes::AddressSplit::Index& index : checked_indices(*table)) {
            need(index.parts.query);
            need(index.parts.key);
            need(index.parts.rest);
            need(index.entries);
        }
        return parts;
    }
    if (is_narrow_distance(id)) return symbols_->node(node.operands[0]).operands;
    if (const ClampedDifference* const difference = symbols_->clamped_difference(id))
        return {difference->x, difference->y};
    if (node.op != Op::sum) return node.operands;
    // A sum needs its range, and the values that enter its terms.
    std::vector<NodeId> outside = symbols_->node(node.operands[0]).operands;
    const std::vector<NodeId> entered = passes::entering(symbols_->mod(), {node.operands[1]});
    outside.insert(outside.end(), entered.begin(), entered.end());
    return outside;
}

std::string Body::text(NodeId id) const {
    if (symbols_->is_free(id)) return free_value(id);
    // A loop can use what its function has declared before it.
    if (const auto known = values_.find(id); known != values_.end()) return known->second;
    return access_ + std::string(passes::name(symbols_->place(id))) + "." +
           value_name(symbols_->mod().program, id);
}

std::string Body::text_as(NodeId id, CType type) const {
    const ir::Node& node = symbols_->node(id);
    if (node.op == Op::const_int) return integer_literal(node.integer, type);
    const CType own = symbols_->type(id);
    if (type == CType::wide && own == CType::narrow)
        return "flexc_wide(" + unbracketed(text(id)) + ")";
    if (type == CType::narrow && own == CType::wide)
        return "flexc_narrow(" + unbracketed(text(id)) + ")";
    return text(id);
}

std::string Body::argument(passes::ArgumentSlot slot) const {
    return access_ + "arguments." + symbols_->field(slot);
}

std::string Body::free_value(NodeId id) const {
    const ir::Node& node = symbols_->node(id);
    switch (node.op) {
    case Op::const_bool: return node.integer != 0 ? "true" : "false";
    case Op::const_int: return integer_literal(node.integer, symbols_->type(id));
    case Op::const_real: return real_literal(node.real);
    case Op::score: return "score";
    case Op::q_idx: return access_ + "q";
    case Op::kv_idx: return access_ + "kv";
    case Op::size: return argument(symbols_->slot_of_size(node.symbol));
    case Op::param: return argument({Kind::param, node.symbol});
    default: return access_ + std::string(ir::info(node.op).name); // b h h_kv
    }
}

std::string Body::expression(NodeId id) {
    switch (symbols_->node(id).op) {
    case Op::read: return read(id);
    case Op::sum: return sum(id);
    case Op::q_len:
    case Op::kv_len:
    case Op::q_row:
    case Op::kv_row: return of_request(symbols_->node(id).op);
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
    const ir::Node& range = symbols_->node(counter);
    const CType type = symbols_->type(counter);
    line("#pragma unroll 1");
    line(formatted("for ({0} {1} = {2}; {1} < {3}; ++{1}) {{", spelling(type),
                   value_name(symbols_->mod().program, counter),
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
    inside.values_[counter] = value_name(symbols_->mod().program, counter);
    fill(inside);
    instructions_ = inside.instructions_;
    text_ += inside.text_;
}

std::string Body::sum(NodeId id) {
    const ir::Node& node = symbols_->node(id);
    const NodeId term = node.operands[1];
    const CType type = symbols_->type(id);
    const std::string total = value_name(symbols_->mod().program, id);
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
    const ir::Node& node = symbols_->node(id);
    if (node.op != Op::ifloordiv && node.op != Op::imod) return false;
    const ir::Node& divisor = symbols_->node(node.operands[1]);
    return symbols_->type(id) == CType::narrow &&
           symbols_->type(node.operands[0]) == CType::narrow && divisor.op == Op::const_int &&
           divisor.integer > 0 && divisor.integer <= INT32_MAX &&
           symbols_->mod().ranges.of_node[node.operands[0]].low >= 0;
}

// Whether the node is the absolute difference of two 32-bit numbers, which may not fit into a
// signed 32-bit integer.
bool Body::is_narrow_distance(NodeId id) const {
    const ir::Node& node = symbols_->node(id);
    if (node.op != Op::iabs || symbols_->type(id) != CType::wide) return false;
    const NodeId difference = node.operands[0];
    const auto is_narrow = [&](NodeId operand) { return symbols_->type(operand) == CType::narrow; };
    return symbols_->node(difference).op == Op::isub && is_local(difference) &&
           std::ranges::all_of(symbols_->node(difference).operands, is_narrow);
}

// The bounds are around the query's number, if one of the two is that: a thread with few queries
// finds them once, and one with few keys has no registers to keep them in.
std::string Body::text_of(const ClampedDifference& difference) const {
    const auto between = [&](NodeId x, NodeId y, std::int64_t least, std::int64_t most) {
        return formatted("flexc_clamped_difference({}, {}, {}, {})",
                         unbracketed(text_as(x, CType::narrow)),
                         unbracketed(text_as(y, CType::narrow)), least, most);
    };
    const auto& [x, y, least, most] = difference;
    return symbols_->place(x) <= Place::row && symbols_->place(y) > Place::row
               ? "(-" + between(y, x, -most, -least) + ")"
               : between(x, y, least, most);
}

std::string Body::operation(NodeId id) const {
    const ir::Node& node = symbols_->node(id);
    if (const ClampedDifference* const difference = symbols_->clamped_difference(id))
        return text_of(*difference);
    if (is_narrow_distance(id)) {
        const std::vector<NodeId>& ends = symbols_->node(node.operands[0]).operands;
        return formatted("flexc_distance({}, {})", unbracketed(text(ends[0])),
                         unbracketed(text(ends[1])));
    }
    // All integer operands are converted to one width: the result's, or for a comparison that of
    // the widest operand.
    CType integers = symbols_->type(id);
    if (ir::info(node.op).compares_integers()) {
        const bool wide = std::ranges::any_of(
            node.operands, [&](NodeId operand) { return symbols_->type(operand) == CType::wide; });
        integers = wide ? CType::wide : CType::narrow;
    }
    if (std::string of_log = int_of_log(id); !of_log.empty()) return of_log;
    if (std::string of_sqrt = int_of_sqrt(id); !of_sqrt.empty()) return of_sqrt;
    if (std::string bounded = bounded_int_of_sqrt(id); !bounded.empty()) return bounded;
    if (node.op == Op::real_to_int && integers == CType::narrow)
        return "flexc_to_narrow_int(" + unbracketed(text(node.operands[0])) + ")";

    if (symbols_->has_reciprocal(id))
        return formatted("({} * {})", text(node.operands[0]), reciprocal(node.operands[1]));

    if (symbols_->has_integer_reciprocal(id)) {
        const NodeId divisor = node.operands[1];
        const std::string quotient = formatted(
            "{}, {}, {}", unbracketed(text_as(node.operands[0], CType::narrow)),
            argument({Kind::reciprocal, divisor}), argument({Kind::divisor_sign, divisor}));
        return node.op == Op::ifloordiv ? formatted("flexc_floor_divide({})", quotient)
                                        : formatted("flexc_floor_modulo({}, {})", quotient,
                                                    unbracketed(text_as(divisor, CType::wide)));
    }

    const auto operand_text = [&](NodeId operand) {
        const bool is_integer = symbols_->node(operand).type == ir::Type::integer;
        return is_integer && node.op != Op::int_to_real ? text_as(operand, integers)
                                                        : text(operand);
    };
    if (node.op == Op::int_to_real && symbols_->is_fast(id))
        if (std::string split = split_position(node.operands[0]); !split.empty()) return split;
    const std::string_view pattern = is_plain(id) ? plain_spelling(node.op)
                                     : symbols_->wraps(id) && !wrapping_spelling(node.op).empty()
                                         ? wrapping_spelling(node.op)
                                         : spelling(node.op, symbols_->precision(id));
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
    const ir::Node& node = symbols_->node(divisor);
    if (node.op == Op::const_real) return real_literal(1 / node.real);
    return formatted("{}{}.{}", access_, passes::name(symbols_->place(divisor)),
                     reciprocal_name(divisor));
}

// Returns the text of int(log(x) / c) or int(log(x) * c) by a function that evaluates the logarithm
// exactly only for the few x that need it; "" if the node is neither.
std::string Body::int_of_log(NodeId id) const {
    if (!guesses_logs_ || symbols_->node(id).op != Op::real_to_int ||
        symbols_->type(id) != CType::narrow)
        return "";
    const NodeId scaled = symbols_->node(id).operands[0];
    const ir::Node& scale = symbols_->node(scaled);
    NodeId log = scaled;
    double factor = 1;
    if (scale.op == Op::fdiv || scale.op == Op::fmul) {
        const bool is_first =
            scale.op == Op::fmul && symbols_->node(scale.operands[0]).op == Op::const_real;
        const ir::Node& constant = symbols_->node(scale.operands[is_first ? 0 : 1]);
        if (constant.op != Op::const_real) return "";
        factor = scale.op == Op::fdiv ? 1 / constant.real : constant.real;
        log = scale.operands[is_first ? 1 : 0];
    }
    constexpr double kLargest = 1 << 16;
    if (symbols_->node(log).op != Op::log || !(std::fabs(factor) <= kLargest) ||
        std::fabs(factor) < 1 / kLargest)
        return "";
    return formatted("flexc_int_of_log({}, {}, *{}doubt)",
                     unbracketed(text(symbols_->node(log).operands[0])),
                     real_literal(factor * std::numbers::ln2), access_);
}

// Returns the text of x if the node is int(sqrt(x)) and x is available here; otherwise "".
std::string Body::square_of_int_of_sqrt(NodeId id) const {
    if (symbols_->node(id).op != Op::real_to_int || symbols_->type(id) != CType::narrow) return "";
    const ir::Node& root = symbols_->node(symbols_->node(id).operands[0]);
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
    if (symbols_->node(id).op != Op::imin || symbols_->type(id) != CType::narrow) return "";
    constexpr std::int64_t kMost = 1 << 20; // the limit of flexc_bounded_int_of_sqrt()
    for (const std::size_t side : {0U, 1U}) {
        const ir::Node& most = symbols_->node(symbols_->node(id).operands[side]);
        if (most.op != Op::const_int || most.integer < 0 || most.integer > kMost) continue;
        const std::string square = square_of_int_of_sqrt(symbols_->node(id).operands[1 - side]);
        if (!square.empty())
            return formatted("flexc_bounded_int_of_sqrt({}, {})", square, most.integer);
    }
    return "";
}

// Returns the text of an integer that is affine in q and kv, as a float split by positions; "" if
// it cannot be split.
std::string Body::split_position(NodeId integer) const {
    if (!symbols_->splits_positions() || here_ != Place::element || access_.empty()) return "";
    if (symbols_->type(integer) != CType::narrow) return "";
    const analysis::AffineForm& form = symbols_->mod().affine[integer];
    if ((form.q == 0 && form.kv == 0) || form.rest_uses(analysis::kPositions)) return "";
    const auto at_first = TextAtFirst(*this, *symbols_).of(integer);
    if (!at_first) return "";
    return formatted("(static_cast<float>({}) + static_cast<float>({} * (at.q - at.first_q) + {} * "
                     "(at.kv - at.first_kv)))",
                     *at_first, form.q, form.kv);
}

} // namespace flexc::cuda
