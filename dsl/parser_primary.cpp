// The smallest expressions: literals, names, parentheses.
#include <charconv>

#include "dsl/parser_state.h"

namespace flexc::dsl {

// primary = integer | real | "true" | "false" | name | "(" expression ")": all but the last
ExprId Parser::primary() {
    Expr expr;
    expr.span = token().span;
    switch (token().kind) {
    case TokenKind::integer: return integer_literal();
    case TokenKind::real: return real_literal();
    case TokenKind::kw_true:
    case TokenKind::kw_false:
        expr.kind = ExprKind::boolean;
        expr.integer = advance().kind == TokenKind::kw_true;
        return add(std::move(expr));
    case TokenKind::identifier: return dotted_name();
    case TokenKind::string: {
        const std::string string = text(token());
        const bool formatted = string.find_first_of("fF") < string.find_first_of("\"'");
        error(token().span, formatted ? "an f-string is not a value" : "a string is not a value",
              "the only strings are in float(\"inf\"), float(\"-inf\") and float(\"nan\")");
        return kNoExpr;
    }
    case TokenKind::kw_lambda: {
        error(token().span, "lambdas are not supported",
              "write the body alone, as in score_mod = ..., or a function: fn name(x) = ...");
        return kNoExpr;
    }
    case TokenKind::left_bracket:
        error(token().span, "lists are not supported",
              "declare a buffer and pass the numbers at run time");
        return kNoExpr;
    case TokenKind::left_brace:
        error(token().span, "unexpected '{' in an expression",
              "a body in braces has no '=' before it: score_mod { ... }");
        return kNoExpr;
    default: unexpected("a value"); return kNoExpr;
    }
}

ExprId Parser::parenthesised() {
    const Token opener = token();
    if (!enter(opener.span) || !open(TokenKind::left_paren)) return kNoExpr;
    const ExprId inner = expression();
    leave();
    return failed_ ? kNoExpr : end_parenthesised(opener, inner);
}

ExprId Parser::end_parenthesised(const Token& opener, ExprId inner) {
    if (at(TokenKind::comma))
        error(token().span, "tuples are not supported", "an expression has one value");
    else if (at(TokenKind::assign))
        error(token().span, "unexpected '='", "to compare, write '=='");
    else if (at_word("for"))
        error(token().span, "loops are not supported", "write the terms out");
    else
        close(TokenKind::right_paren, opener);
    if (failed_) return kNoExpr;
    result_.ast.exprs[inner].span = span_from(opener.span);
    result_.ast.exprs[inner].parenthesised = true;
    return inner;
}

// name = [ ("torch" | "math") "." { identifier "." } ] identifier
ExprId Parser::dotted_name() {
    const Token first = advance();
    Expr expr;
    expr.kind = ExprKind::name;
    expr.name = text(first);
    if ((expr.name == "torch" || expr.name == "math") && at(TokenKind::dot)) {
        while (accept(TokenKind::dot)) {
            if (!at(TokenKind::identifier)) {
                unexpected("a name after '.'");
                return kNoExpr;
            }
            expr.name = text(advance());
        }
        expr.qualified = true;
    }
    expr.span = span_from(first.span);
    if (expr.name == "None") {
        error(expr.span, "None is not a value");
        return kNoExpr;
    }
    return add(std::move(expr));
}

ExprId Parser::integer_literal() {
    const Token literal = advance();
    std::string digits = text(literal);
    std::erase(digits, '_');
    int base = 10;
    if (digits.size() > 1 && digits[0] == '0') {
        const char radix = static_cast<char>(digits[1] | 0x20);
        base = radix == 'x' ? 16 : radix == 'b' ? 2 : radix == 'o' ? 8 : 10;
        if (base != 10) digits.erase(0, 2);
    }
    Expr expr;
    expr.kind = ExprKind::integer;
    expr.span = literal.span;
    const auto [end, code] =
        std::from_chars(digits.data(), digits.data() + digits.size(), expr.integer, base);
    if (code != std::errc{} || end != digits.data() + digits.size()) {
        error(literal.span, "integer too large: it does not fit in 64 bits",
              "write a real number, such as 1e20");
        return kNoExpr;
    }
    return add(std::move(expr));
}

ExprId Parser::real_literal() {
    const Token literal = advance();
    std::string digits = text(literal);
    std::erase(digits, '_');
    Expr expr;
    expr.kind = ExprKind::real;
    expr.span = literal.span;
    const auto [end, code] =
        std::from_chars(digits.data(), digits.data() + digits.size(), expr.real);
    if (code != std::errc{} || end != digits.data() + digits.size()) {
        error(literal.span, "real number out of range", "the largest is inf, the smallest is 0.0");
        return kNoExpr;
    }
    return add(std::move(expr));
}

// float("inf") and its kin are the constant of that name.
ExprId Parser::string_as_number(Span call_span, std::size_t index_of_string) {
    const Token& string = tokens_[index_of_string];
    std::string word;
    for (char c : text(string))
        if (c != '"' && c != '\'' && c != ' ')
            word += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    const bool negative = word.starts_with('-');
    if (negative || word.starts_with('+')) word.erase(0, 1);
    if (word == "infinity") word = "inf";
    if (word != "inf" && word != "nan") {
        error(string.span, "a string is not a value",
              "float() takes \"inf\", \"-inf\" or \"nan\"; write other numbers without quotes");
        return kNoExpr;
    }
    Expr name;
    name.kind = ExprKind::name;
    name.name = word;
    name.qualified = true;
    name.span = call_span;
    ExprId id = add(std::move(name));
    if (!negative) return id;
    Expr minus;
    minus.kind = ExprKind::unary;
    minus.op = Operator::negate;
    minus.span = call_span;
    minus.operands = {id};
    return add(std::move(minus));
}

} // namespace flexc::dsl
