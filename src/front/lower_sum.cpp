// sum(i in first..end: term): the terms are written out, which suits the short axes of points,
// paths and lists.
#include "front/lower.h"
#include "front/operators.h"

namespace flexc::front {

using ir::kNoNode;
using ir::NodeId;

namespace {

// Kernels with 16 learned reads for each element take half a minute to compile, and spill.
constexpr std::int64_t kMostTerms = 16;

} // namespace

std::optional<std::int64_t> Lowering::sum_bound(dsl::ExprId id) {
    const Operand bound = number(id);
    if (bound.node == kNoNode) return std::nullopt;
    const auto known = build().constant(bound.node);
    if (known && build().type(bound.node) == ir::Type::integer) return known->integer;
    report_.error(bound.span, "the range of a sum must be integers known at compile time",
                  "write a number or a const");
    return std::nullopt;
}

NodeId Lowering::lower_sum(const dsl::Expr& expr) {
    const auto first = sum_bound(expr.operands[0]), end = sum_bound(expr.operands[1]);
    if (!first || !end) return kNoNode;
    if (*end > *first && (*end > kMostTerms + *first)) {
        report_.error(expr.span, "a sum has at most 16 terms",
                      "a longer product of a row and a column belongs into q and k: append both to "
                      "their head dims");
        return kNoNode;
    }
    // The name that counts hides an outer one, and only inside.
    const auto outer = scope_->locals.extract(expr.name);
    Operand total{.node = build().integer(0, expr.span), .span = expr.span};
    for (std::int64_t i = *first; i < *end && total.node != kNoNode; ++i) {
        scope_->locals[expr.name] = value_of(build().integer(i, expr.span));
        const Operand term = number(expr.operands[2]);
        total.node =
            i == *first && term.node != kNoNode && build().type(term.node) == ir::Type::real
                ? term.node
                : lower_binary(build(), dsl::Operator::add, total, term, expr.span);
    }
    scope_->locals.erase(expr.name);
    if (!outer.empty()) scope_->locals.insert_or_assign(outer.key(), outer.mapped());
    return total.node;
}

} // namespace flexc::front
