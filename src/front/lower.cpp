#include "front/lower.h"

#include <algorithm>

#include "front/names.h"
#include "front/operators.h"

namespace flexc::front {

using dsl::Expr;
using dsl::ExprId;
using dsl::ExprKind;
using dsl::Item;
using dsl::Operator;
using ir::kNoNode;
using ir::NodeId;

namespace {
// Inlined calls nest expressions deeper than the parser allows in one text.
constexpr int kMaxDepth = 320;
// Equal nodes are shared, so a small graph can still take very long to build.
constexpr std::size_t kMaxSteps = 1 << 17;
} // namespace

Value Lowering::lower(ExprId id) {
    const Expr& expr = expr_of(id);
    if (build().exhausted()) return {};
    if (depth_ >= kMaxDepth) {
        build().exhaust(expr.span, "calls and expressions are nested too deeply",
                        "the limit is 256 levels in a text, and 320 with the functions it calls");
        return {};
    }
    if (++steps_ > kMaxSteps) {
        build().exhaust(expr.span, "the program is too large after inlining",
                        "functions are copied into every call: give repeated values a name");
        return {};
    }
    ++depth_;
    Value value;
    switch (expr.kind) {
    case ExprKind::boolean: value.node = build().boolean(expr.integer != 0, expr.span); break;
    case ExprKind::integer: value.node = build().integer(expr.integer, expr.span); break;
    case ExprKind::real: value.node = build().real(expr.real, expr.span); break;
    case ExprKind::name: value = lower_name(expr); break;
    case ExprKind::unary: value.node = lower_operand(expr); break;
    case ExprKind::binary: value.node = lower_binary_chain(id); break;
    case ExprKind::compare: value.node = lower_comparisons(expr); break;
    case ExprKind::conditional: value.node = lower_conditional(expr); break;
    case ExprKind::call: value = lower_call(expr); break;
    case ExprKind::index: value = lower_index(expr); break;
    case ExprKind::sum: value.node = lower_sum(expr); break;
    }
    --depth_;
    return value;
}

NodeId Lowering::lower_operand(const Expr& expr) {
    return lower_unary(build(), expr.op, number(expr.operands[0]), expr.span);
}

NodeId Lowering::lower_conditional(const Expr& expr) {
    const Operand condition = number(expr.operands[0]);
    const Operand then = number(expr.operands[1]);
    const Operand otherwise = number(expr.operands[2]);
    return lower_select(build(), "the condition", condition, then, otherwise, expr.span);
}

Operand Lowering::number(ExprId id) { return number_of(lower(id), expr_of(id).span); }

// A buffer is a number once all its dimensions are indexed; one without dimensions is by itself.
Operand Lowering::number_of(const Value& value, dsl::Span span) {
    if (value.function != nullptr) {
        report_.error(span, "'" + value.function->name + "' is a function, not a value",
                      "call it: " + value.function->name + "(...)");
        return {.node = kNoNode, .span = span};
    }
    if (!value.is_buffer()) return {.node = value.node, .span = span};
    const ir::Buffer& buffer = program_.buffers[value.buffer];
    const std::size_t rank = buffer.dims.size(), given = value.indices.size();
    if (given == rank) return {.node = read(value, span), .span = span};
    const std::string dims = std::to_string(rank) + (rank == 1 ? " dimension" : " dimensions");
    report_.error(
        span,
        given == 0 ? "'" + buffer.name + "' is a buffer with " + dims + ", not a number"
                   : "'" + buffer.name + "' has " + dims + ", but only " + std::to_string(given) +
                         (given == 1 ? " is" : " are") + " indexed",
        "index " + std::string(rank == 1 ? "it" : "all of them") + ": " + index_example(value));
    return {.node = kNoNode, .span = span};
}

NodeId Lowering::read(const Value& value, dsl::Span span) {
    if (in_mask_) mask_reads_.try_emplace(value.buffer, report_.place(), span);
    return build().read(value.buffer, ir::type_of(program_.buffers[value.buffer].dtype),
                        value.indices, span);
}

// Sums of thousands of terms lean to the left: walk down, then build up.
NodeId Lowering::lower_binary_chain(ExprId id) {
    std::vector<ExprId> spine;
    for (; expr_of(id).kind == ExprKind::binary; id = expr_of(id).operands[0])
        spine.push_back(id);
    Operand left = number(id);
    for (std::size_t i = spine.size(); i-- > 0;) {
        const Expr& expr = expr_of(spine[i]);
        const Operand right = number(expr.operands[1]);
        left = {.node = lower_binary(build(), expr.op, left, right, expr.span), .span = expr.span};
    }
    return left.node;
}

// a < b < c is a < b and b < c, with b computed once.
NodeId Lowering::lower_comparisons(const Expr& expr) {
    for (std::size_t i = 1; i + 1 < expr.operands.size(); ++i) {
        const Expr& middle = expr_of(expr.operands[i]);
        const bool bits = middle.op == Operator::bit_and || middle.op == Operator::bit_or;
        if (middle.kind == ExprKind::binary && bits && !middle.parenthesised)
            report_.warning(middle.span,
                            "'" + std::string(spelling(middle.op)) + "' binds tighter than '" +
                                std::string(spelling(expr.comparisons[i - 1])) + "' here",
                            "put each comparison in parentheses");
    }
    Operand left = number(expr.operands[0]);
    NodeId all = kNoNode;
    bool complete = true;
    for (std::size_t i = 0; i < expr.comparisons.size(); ++i) {
        const Operand right = number(expr.operands[i + 1]);
        const dsl::Span span{left.span.begin, right.span.end};
        const NodeId one = lower_comparison(build(), expr.comparisons[i], left, right, span);
        complete = complete && one != kNoNode;
        if (complete) all = i == 0 ? one : build().apply(ir::Op::band, {all, one}, expr.span);
        left = right;
    }
    return complete ? all : kNoNode;
}

Value Lowering::lower_body(const dsl::Body& body) {
    for (const dsl::Statement& statement : body) {
        if (statement.kind == dsl::StatementKind::result) return lower(statement.value);
        if (statement.kind == dsl::StatementKind::function) {
            const Item& item = scope_->module->ast.functions[statement.function];
            callables_.push_back({.module = scope_->module,
                                  .item = &item,
                                  .enclosing = scope_,
                                  .name = item.name,
                                  .parts = {}});
            if (may_assign(statement)) scope_->locals[item.name] = {.function = &callables_.back()};
            continue;
        }
        assign(statement);
    }
    return {};
}

void Lowering::assign(const dsl::Statement& statement) {
    Value value;
    if (statement.kind == dsl::StatementKind::assign) {
        value = lower(statement.value);
    } else {
        Expr target;
        target.kind = ExprKind::name;
        target.name = statement.name;
        target.span = statement.name_span;
        const bool allowed = may_assign(statement);
        const Value before = allowed ? lower_name(target) : Value{};
        const Operand left = number_of(before, statement.name_span);
        const Operand right = number(statement.value);
        value.node = lower_binary(build(), statement.op, left, right, statement.span);
        if (allowed) scope_->locals[statement.name] = std::move(value);
        return;
    }
    if (may_assign(statement)) scope_->locals[statement.name] = std::move(value);
}

// Only the ambient names, and names that stand for nothing else at the top, may be assigned.
bool Lowering::may_assign(const dsl::Statement& statement) {
    const std::string& name = statement.name;
    if (scope_->locals.contains(name) || ambient_of(name)) return true;
    std::string what;
    std::vector<dsl::Note> notes;
    if (standard_size_of(name)) {
        what = "a size";
    } else if (number_named(name, false)) {
        what = "a constant of the language";
    } else if (const auto found = symbols_.find(name);
               found != symbols_.end() && !scope_->module->in_library) {
        switch (found->second.kind) {
        case SymbolKind::buffer: what = "a buffer"; break;
        case SymbolKind::param: what = "a param"; break;
        case SymbolKind::constant:
            if (scope_->is_python) return true;
            what = "a const";
            break;
        case SymbolKind::size: what = "a size"; break;
        case SymbolKind::function: return true;
        }
        if (found->second.span.end > 0 && scope_->module == &main_)
            notes.push_back({found->second.span, "declared here"});
    }
    if (what.empty()) return true;
    report_.error(statement.name_span, "'" + name + "' is " + what + " and cannot be assigned",
                  standard_size_of(name)
                      ? "it is as the tensors are: leave the line out, or use another name"
                      : "use another name",
                  std::move(notes));
    return false;
}

} // namespace flexc::front
