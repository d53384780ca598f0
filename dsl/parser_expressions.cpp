// Expressions, by precedence climbing. Precedence and associativity are Python's.
#include <algorithm>
#include <array>

#include "dsl/parser_state.h"

namespace flexc::dsl {

namespace {

enum Precedence : int {
    kNone,
    kOr,
    kAnd,
    kNot,
    kCompare,
    kBitOr,
    kBitXor,
    kBitAnd,
    kShift,
    kSum,
    kProduct,
    kUnary,
    kPower,
};

struct Infix {
    TokenKind token;
    Operator op;
    Precedence precedence;
};

constexpr auto kInfix = std::to_array<Infix>({
    {TokenKind::kw_or, Operator::logical_or, kOr},
    {TokenKind::logical_or, Operator::logical_or, kOr},
    {TokenKind::kw_and, Operator::logical_and, kAnd},
    {TokenKind::logical_and, Operator::logical_and, kAnd},
    {TokenKind::less, Operator::less, kCompare},
    {TokenKind::less_equal, Operator::less_equal, kCompare},
    {TokenKind::greater, Operator::greater, kCompare},
    {TokenKind::greater_equal, Operator::greater_equal, kCompare},
    {TokenKind::equal, Operator::equal, kCompare},
    {TokenKind::not_equal, Operator::not_equal, kCompare},
    {TokenKind::pipe, Operator::bit_or, kBitOr},
    {TokenKind::caret, Operator::bit_xor, kBitXor},
    {TokenKind::ampersand, Operator::bit_and, kBitAnd},
    {TokenKind::shift_left, Operator::shift_left, kShift},
    {TokenKind::shift_right, Operator::shift_right, kShift},
    {TokenKind::plus, Operator::add, kSum},
    {TokenKind::minus, Operator::subtract, kSum},
    {TokenKind::times, Operator::multiply, kProduct},
    {TokenKind::divide, Operator::divide, kProduct},
    {TokenKind::floor_divide, Operator::floor_divide, kProduct},
    {TokenKind::modulo, Operator::modulo, kProduct},
    {TokenKind::power, Operator::power, kPower},
});

const Infix* infix(TokenKind kind) {
    const auto* found = std::find_if(kInfix.begin(), kInfix.end(),
                                     [&](const Infix& row) { return row.token == kind; });
    return found == kInfix.end() ? nullptr : found;
}

} // namespace

// expression = or_test [ "if" or_test "else" expression | "?" expression ":" expression ]
ExprId Parser::expression() {
    const ExprId first = binary(kOr);
    if (failed_) return kNoExpr;
    const bool is_conditional = at(TokenKind::kw_if) || at(TokenKind::question);
    return is_conditional ? conditional(first) : first;
}

ExprId Parser::conditional(ExprId first) {
    const Token question = token();
    const bool python = question.kind == TokenKind::kw_if;
    if (!enter(question.span)) return kNoExpr;
    advance();
    skip_newlines();
    const ExprId second = python ? binary(kOr) : expression();
    if (!failed_ && python && !at(TokenKind::kw_else))
        error(token().span, "expected 'else', got " + describe(token()),
              "a conditional has two values: a if c else b", {{question.span, "the 'if' is here"}});
    else if (!failed_ && !python && !at(TokenKind::colon))
        error(token().span, "expected ':', got " + describe(token()),
              "a conditional has two values: c ? a : b", {{question.span, "the '?' is here"}});
    if (failed_) return kNoExpr;
    advance();
    skip_newlines();
    const ExprId third = expression();
    leave();
    if (failed_) return kNoExpr;
    Expr expr;
    expr.kind = ExprKind::conditional;
    expr.span = {result_.ast[first].span.begin, result_.ast[third].span.end};
    expr.operands = python ? std::vector{second, first, third} : std::vector{first, second, third};
    return add(std::move(expr));
}

ExprId Parser::binary(int minimum) {
    ExprId left = prefix(minimum);
    while (!failed_) {
        if (refuse_operator()) return kNoExpr;
        const Infix* row = infix(token().kind);
        if (row == nullptr || row->precedence < minimum) break;
        if (row->precedence == kCompare) {
            left = comparison(left);
            continue;
        }
        const Token op = advance();
        skip_newlines();
        // ** is right-associative, and takes a sign on its right: 2 ** -1.
        const bool power = row->precedence == kPower;
        if (power && !enter(op.span)) return kNoExpr;
        const ExprId right = binary(power ? static_cast<int>(kUnary) : row->precedence + 1);
        if (power) leave();
        if (failed_) return kNoExpr;
        left = add_binary(row->op, left, right);
    }
    return failed_ ? kNoExpr : left;
}

ExprId Parser::add_binary(Operator op, ExprId left, ExprId right) {
    Expr expr;
    expr.kind = ExprKind::binary;
    expr.op = op;
    expr.span = {result_.ast[left].span.begin, result_.ast[right].span.end};
    expr.operands = {left, right};
    return add(std::move(expr));
}

// comparison = bit_or { ("<" | "<=" | ">" | ">=" | "==" | "!=") bit_or }
ExprId Parser::comparison(ExprId first) {
    Expr expr;
    expr.kind = ExprKind::compare;
    expr.operands = {first};
    for (const Infix* row = infix(token().kind); row != nullptr && row->precedence == kCompare;
         row = infix(token().kind)) {
        advance();
        skip_newlines();
        const ExprId operand = binary(kBitOr);
        if (failed_) return kNoExpr;
        expr.comparisons.push_back(row->op);
        expr.operands.push_back(operand);
        if (refuse_operator()) return kNoExpr;
    }
    expr.span = {result_.ast[first].span.begin, result_.ast[expr.operands.back()].span.end};
    return add(std::move(expr));
}

ExprId Parser::prefix(int minimum) {
    switch (token().kind) {
    case TokenKind::kw_not:
        if (minimum > kNot) {
            error(token().span, "'not' binds weaker than the operator before it",
                  "put it in parentheses: (not x)");
            return kNoExpr;
        }
        return unary(Operator::logical_not, kNot);
    case TokenKind::bang: return unary(Operator::logical_not, kUnary);
    case TokenKind::minus: return unary(Operator::negate, kUnary);
    case TokenKind::plus: return unary(Operator::plus, kUnary);
    case TokenKind::tilde: return unary(Operator::invert, kUnary);
    default: break;
    }
    ExprId base = at(TokenKind::left_paren) ? parenthesised() : primary();
    if (!failed_) base = postfix(base);
    return failed_ ? kNoExpr : base;
}

ExprId Parser::unary(Operator op, int operand_minimum) {
    const Token sign = token();
    if (!enter(sign.span)) return kNoExpr;
    advance();
    skip_newlines();
    const ExprId operand = binary(operand_minimum);
    leave();
    if (failed_) return kNoExpr;
    Expr expr;
    expr.kind = ExprKind::unary;
    expr.op = op;
    expr.span = {sign.span.begin, result_.ast[operand].span.end};
    expr.operands = {operand};
    return add(std::move(expr));
}

// postfix = primary { "(" arguments ")" | "[" expression { "," expression } "]" }
ExprId Parser::postfix(ExprId base) {
    int levels = 0;
    while (!failed_) {
        if (at(TokenKind::left_paren)) {
            if (!enter(token().span)) break;
            ++levels;
            base = call(base);
        } else if (at(TokenKind::left_bracket)) {
            if (!enter(token().span)) break;
            ++levels;
            base = index(base);
        } else if (at(TokenKind::dot)) {
            if (!at_method(base)) {
                refuse_attribute(base);
                break;
            }
            if (!enter(token().span)) break;
            ++levels;
            base = method_call(base);
        } else {
            break;
        }
    }
    depth_ -= levels;
    return failed_ ? kNoExpr : base;
}

ExprId Parser::call(ExprId callee) {
    const Token opener = token();
    if (result_.ast[callee].kind != ExprKind::name) {
        error(opener.span, "only a name can be called",
              "a product needs '*', and several values in one place are not supported");
        return kNoExpr;
    }
    if (!open(TokenKind::left_paren)) return kNoExpr;
    const Expr& name = result_.ast[callee];
    if (name.name == "sum" && !name.qualified && at(TokenKind::identifier) &&
        at(TokenKind::kw_in, 1))
        return sum(name.span, opener);
    Expr expr;
    expr.kind = ExprKind::call;
    expr.operands = {callee};
    return arguments(std::move(expr), opener, result_.ast[callee].span);
}

// x.tanh() is torch.tanh(x), which no function of the program hides.
ExprId Parser::method_call(ExprId object) {
    advance(); // '.'
    Expr name;
    name.kind = ExprKind::name;
    name.qualified = true;
    name.span = token().span;
    name.name = text(advance());
    const Token opener = token();
    const Span from = result_.ast[object].span;
    if (!open(TokenKind::left_paren)) return kNoExpr;
    Expr expr;
    expr.kind = ExprKind::call;
    expr.operands = {add(std::move(name)), object};
    expr.keywords = {""};
    expr.argument_spans = {from};
    return arguments(std::move(expr), opener, from);
}

// The rest of a call, from behind its '('.
ExprId Parser::arguments(Expr expr, const Token& opener, Span from) {
    const ExprId callee = expr.operands[0];
    while (!at(TokenKind::right_paren)) {
        std::string keyword;
        const Span argument = token().span;
        if (at(TokenKind::identifier) && at(TokenKind::assign, 1)) {
            keyword = text(advance());
            advance();
        } else if (at(TokenKind::times) || at(TokenKind::power)) {
            error(token().span, "arguments cannot be unpacked", "write each argument");
        } else if (at(TokenKind::string) && result_.ast[callee].name == "float") {
            const Token string = advance();
            if (at(TokenKind::right_paren) && expr.operands.size() == 1) {
                advance();
                return string_as_number(span_from(result_.ast[callee].span), next_ - 2);
            }
            error(string.span, "a string is not a value");
        }
        if (failed_) return kNoExpr;
        expr.operands.push_back(expression());
        expr.keywords.push_back(std::move(keyword));
        expr.argument_spans.push_back(span_from(argument));
        if (!failed_ && at_word("for"))
            error(token().span, "loops are not supported", "write the terms out");
        if (!failed_ && !at(TokenKind::comma) && !at(TokenKind::right_paren)) {
            if (at(TokenKind::assign))
                error(token().span, "unexpected '='", "to compare, write '=='");
            else
                unexpected("',' or ')'");
        }
        if (failed_) return kNoExpr;
        accept(TokenKind::comma);
    }
    close(TokenKind::right_paren, opener);
    expr.span = span_from(from);
    return add(std::move(expr));
}

// "sum" "(" name "in" expression ".." expression ":" expression ")"
ExprId Parser::sum(Span callee, const Token& opener) {
    Expr expr;
    expr.kind = ExprKind::sum;
    expr.name = text(advance());
    advance();
    for (const TokenKind after : {TokenKind::range, TokenKind::colon, TokenKind::right_paren}) {
        expr.operands.push_back(expression());
        if (failed_) return kNoExpr;
        if (after == TokenKind::right_paren)
            close(after, opener);
        else if (!accept(after))
            unexpected("'" + std::string(after == TokenKind::range ? ".." : ":") +
                       "', as in sum(i in 0..4: x[i])");
        if (failed_) return kNoExpr;
    }
    expr.span = span_from(callee);
    return add(std::move(expr));
}

ExprId Parser::index(ExprId base) {
    const Token opener = token();
    if (!open(TokenKind::left_bracket)) return kNoExpr;
    Expr expr;
    expr.kind = ExprKind::index;
    expr.operands = {base};
    while (!at(TokenKind::right_bracket)) {
        if (at(TokenKind::colon) || at(TokenKind::ellipsis)) {
            error(token().span, "slices are not supported",
                  "a read gives one number: index every dimension");
            return kNoExpr;
        }
        expr.operands.push_back(expression());
        if (failed_) return kNoExpr;
        if (at(TokenKind::colon)) {
            error(token().span, "slices are not supported",
                  "a read gives one number: index every dimension");
            return kNoExpr;
        }
        if (!at(TokenKind::comma) && !at(TokenKind::right_bracket)) {
            unexpected("',' or ']'");
            return kNoExpr;
        }
        accept(TokenKind::comma);
    }
    close(TokenKind::right_bracket, opener);
    expr.span = span_from(result_.ast[base].span);
    if (expr.operands.size() == 1) {
        error(expr.span, "an index is missing between '[' and ']'");
        return kNoExpr;
    }
    return add(std::move(expr));
}

ExprId Parser::add(Expr expr) {
    result_.ast.exprs.push_back(std::move(expr));
    return static_cast<ExprId>(result_.ast.exprs.size() - 1);
}

} // namespace flexc::dsl
