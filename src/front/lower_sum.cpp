// sum(i in first..end: term): a loop, but for the short axes of points, paths and lists, whose
// terms are written out.
#include <algorithm>

#include "front/lower.h"
#include "front/operators.h"

namespace flexc::front {

using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

// Up to here, terms are faster side by side: what belongs to a row or a column is computed once for
// it. Each learned term is an addition to memory, whose code takes long to compile.
constexpr std::int64_t kFewTerms = 8, kFewLearnedTerms = 4;
// Most terms of a sum inside the term of another one, which is unrolled.
constexpr std::int64_t kMostInner = 16;

} // namespace

std::optional<Lowering::SumBound> Lowering::sum_bound(dsl::ExprId id) {
    const Operand bound = number(id);
    if (bound.node == kNoNode) return std::nullopt;
    if (build().type(bound.node) == ir::Type::integer) {
        if (const auto known = build().constant(bound.node))
            return SumBound{bound.node, known->integer};
        const ir::Graph& graph = build().graph();
        if (std::ranges::all_of(ir::reachable(graph, std::span(&bound.node, 1)), [&](NodeId node) {
                return !ir::info(graph[node].op).is_leaf() || graph[node].op == Op::const_int ||
                       graph[node].op == Op::size || graph[node].op == Op::q_len ||
                       graph[node].op == Op::kv_len;
            }))
            return SumBound{bound.node, std::nullopt};
    }
    report_.error(bound.span, "the range of a sum must be integers known at compile time, or sizes",
                  "write a number, a const or a name such as D or KV_LEN");
    return std::nullopt;
}

Operand Lowering::sum_term(const dsl::Expr& expr, NodeId counter) {
    // The name that counts hides an outer one, and only inside.
    const auto outer = scope_->locals.extract(expr.name);
    scope_->locals[expr.name] = value_of(counter);
    const Operand term = number(expr.operands[2]);
    scope_->locals.erase(expr.name);
    if (!outer.empty()) scope_->locals.insert_or_assign(outer.key(), outer.mapped());
    return term;
}

NodeId Lowering::lower_sum(const dsl::Expr& expr) {
    const auto first = sum_bound(expr.operands[0]), end = sum_bound(expr.operands[1]);
    if (!first || !end) return kNoNode;
    const bool is_known = first->value && end->value;
    if (is_known && *end->value <= *first->value) return build().integer(0, expr.span);
    if (is_known && *end->value > *first->value + ir::kMaxTerms) {
        report_.error(expr.span, "a sum has at most 65,536 terms");
        return kNoNode;
    }
    // Expressions that are evaluated outside of the program must be constants.
    const bool is_written_out = is_in_sum_ || build_ != &program_builder_;
    if (is_written_out && (!is_known || *end->value - *first->value > kMostInner)) {
        report_.error(expr.span, "a sum inside another has at most 16 terms",
                      "if it does not use the other's name, compute it before and give it a name");
        return kNoNode;
    }
    if (is_written_out) return written_sum(expr, *first->value, *end->value);
    if (is_known && *end->value - *first->value <= kFewTerms) {
        const std::int64_t count = *end->value - *first->value;
        const NodeId total = written_sum(expr, *first->value, *end->value);
        if (total == kNoNode || count <= kFewLearnedTerms || learned_reads(total) < count)
            return total;
    }
    const NodeId counter = build().counter(first->node, end->node, expr.span);
    is_in_sum_ = true;
    Operand term = sum_term(expr, counter);
    is_in_sum_ = false;
    if (term.node == kNoNode) return kNoNode;
    if (build().type(term.node) == ir::Type::boolean)
        term.node = build().to_integer(term.node, term.span);
    return build().sum(counter, term.node, expr.span);
}

std::int64_t Lowering::learned_reads(NodeId total) {
    const ir::Graph& graph = build().graph();
    return std::ranges::count_if(ir::reachable(graph, std::span(&total, 1)), [&](NodeId id) {
        return graph[id].op == Op::read && program_.buffers[graph[id].symbol].grad;
    });
}

NodeId Lowering::written_sum(const dsl::Expr& expr, std::int64_t first, std::int64_t end) {
    Operand total{.node = build().integer(0, expr.span), .span = expr.span};
    for (std::int64_t i = first; i < end && total.node != kNoNode; ++i) {
        const Operand term = sum_term(expr, build().integer(i, expr.span));
        total.node = i == first && term.node != kNoNode && build().type(term.node) == ir::Type::real
                         ? term.node
                         : lower_binary(build(), dsl::Operator::add, total, term, expr.span);
    }
    return total.node;
}

} // namespace flexc::front
