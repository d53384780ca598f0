#include "front/builder.h"

#include <algorithm>
#include <limits>

namespace flexc::front {

using ir::kNoNode;
using ir::NodeId;
using ir::Op;
using ir::Type;

namespace {

bool power_overflows(std::int64_t base, std::int64_t exponent) {
    if (exponent <= 0 || (base >= -1 && base <= 1)) return false;
    std::int64_t result = 1;
    for (std::int64_t i = 0; i < exponent; ++i)
        if (__builtin_mul_overflow(result, base, &result)) return true;
    return false;
}

// Whether an integer operator leaves the 64-bit range for these values.
bool overflows(Op op, const std::vector<Constant>& values) {
    const std::int64_t x = values[0].integer;
    const std::int64_t y = values.size() > 1 ? values[1].integer : 0;
    constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
    std::int64_t result = 0;
    switch (op) {
    case Op::iadd: return __builtin_add_overflow(x, y, &result);
    case Op::isub: return __builtin_sub_overflow(x, y, &result);
    case Op::imul: return __builtin_mul_overflow(x, y, &result);
    case Op::ineg:
    case Op::iabs: return x == kLowest;
    case Op::ifloordiv: return x == kLowest && y == -1;
    case Op::ipow: return power_overflows(x, y);
    case Op::ishl: return x != 0 && (y > 62 || (y >= 0 && ((x << y) >> y) != x));
    default: return false;
    }
}

} // namespace

NodeId Builder::boolean(bool value, dsl::Span span) {
    const NodeId node = checked(graph_->boolean(value, reporter_->node_span(span)), span);
    constants_[node] = {.boolean = value};
    return node;
}

NodeId Builder::integer(std::int64_t value, dsl::Span span) {
    const NodeId node = checked(graph_->integer(value, reporter_->node_span(span)), span);
    constants_[node] = {.integer = value};
    return node;
}

NodeId Builder::real(double value, dsl::Span span) {
    const NodeId node = checked(graph_->real(value, reporter_->node_span(span)), span);
    constants_[node] = {.real = value};
    return node;
}

NodeId Builder::literal(Type type, const Constant& value, dsl::Span span) {
    switch (type) {
    case Type::boolean: return boolean(value.boolean, span);
    case Type::integer: return integer(value.integer, span);
    default: return real(value.real, span);
    }
}

NodeId Builder::ambient(Op op, dsl::Span span) {
    return checked(graph_->ambient(op, reporter_->node_span(span)), span);
}

NodeId Builder::size_of(std::uint32_t symbol, dsl::Span span) {
    return checked(graph_->size_of(symbol, reporter_->node_span(span)), span);
}

NodeId Builder::param(std::uint32_t symbol, Type type, dsl::Span span) {
    return checked(graph_->param(symbol, type, reporter_->node_span(span)), span);
}

NodeId Builder::read(std::uint32_t buffer, Type type, std::vector<NodeId> indices, dsl::Span span) {
    if (std::find(indices.begin(), indices.end(), kNoNode) != indices.end()) return kNoNode;
    return checked(graph_->read(buffer, type, std::move(indices), reporter_->node_span(span)),
                   span);
}

NodeId Builder::counter(NodeId first, NodeId end, dsl::Span span) {
    return checked(graph_->counter(first, end, reporter_->node_span(span)), span);
}

NodeId Builder::sum(NodeId counter, NodeId term, dsl::Span span) {
    if (counter == kNoNode || term == kNoNode) return kNoNode;
    return checked(graph_->sum(counter, term, reporter_->node_span(span)), span);
}

NodeId Builder::apply(Op op, std::vector<NodeId> operands, dsl::Span span) {
    std::vector<Constant> values;
    for (const NodeId operand : operands) {
        if (operand == kNoNode) return kNoNode;
        if (const auto found = constants_.find(operand); found != constants_.end())
            values.push_back(found->second);
    }
    const bool all_known = values.size() == operands.size();
    if (all_known && ir::info(op).signature.front() == 'i' && overflows(op, values)) {
        reporter_->error(span, "integer overflow: the result does not fit in 64 bits",
                         "write one operand as a real number, such as 2.0");
        return kNoNode;
    }
    const NodeId node =
        checked(graph_->apply(op, std::move(operands), reporter_->node_span(span)), span);
    if (all_known && node != kNoNode) constants_[node] = ir::apply<double>(op, values);
    return node;
}

NodeId Builder::to_real(NodeId node, dsl::Span span) {
    if (node == kNoNode || type(node) == Type::real) return node;
    const ir::Node& from = (*graph_)[node];
    if (from.op == Op::const_int || from.op == Op::const_bool) {
        replaced_.insert(node);
        return real(static_cast<double>(from.integer), span);
    }
    return apply(from.type == Type::boolean ? Op::bool_to_real : Op::int_to_real, {node}, span);
}

NodeId Builder::to_integer(NodeId node, dsl::Span span) {
    if (node == kNoNode || type(node) == Type::integer) return node;
    const ir::Node& from = (*graph_)[node];
    if (from.op == Op::const_bool) return integer(from.integer, span);
    return apply(Op::bool_to_int, {node}, span);
}

std::optional<Constant> Builder::constant(NodeId node) const {
    const auto found = constants_.find(node);
    return found == constants_.end() ? std::nullopt : std::optional(found->second);
}

void Builder::exhaust(dsl::Span span, std::string message, std::string hint) {
    if (!exhausted_) reporter_->error(span, std::move(message), std::move(hint));
    exhausted_ = true;
}

NodeId Builder::checked(NodeId node, dsl::Span span) {
    if (graph_->size() > kMaxNodes + replaced_.size())
        exhaust(
            span, "the program is larger than 4,096 IR nodes after inlining",
            "functions are copied into every call: give repeated values a name, or read a buffer");
    return exhausted_ ? kNoNode : node;
}

} // namespace flexc::front
