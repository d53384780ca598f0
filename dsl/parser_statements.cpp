// Bodies: one expression after '=', statements in braces, or Python's indented block.
#include <algorithm>
#include <array>

#include "dsl/parser_state.h"

namespace flexc::dsl {

namespace {

struct Augmented {
    TokenKind token;
    Operator op;
};

constexpr auto kAugmented = std::to_array<Augmented>({
    {TokenKind::plus_assign, Operator::add},
    {TokenKind::minus_assign, Operator::subtract},
    {TokenKind::times_assign, Operator::multiply},
    {TokenKind::divide_assign, Operator::divide},
    {TokenKind::floor_divide_assign, Operator::floor_divide},
    {TokenKind::modulo_assign, Operator::modulo},
    {TokenKind::power_assign, Operator::power},
    {TokenKind::and_assign, Operator::bit_and},
    {TokenKind::or_assign, Operator::bit_or},
    {TokenKind::xor_assign, Operator::bit_xor},
    {TokenKind::shift_left_assign, Operator::shift_left},
    {TokenKind::shift_right_assign, Operator::shift_right},
});

Operator augmented(TokenKind kind) {
    for (const Augmented& row : kAugmented)
        if (row.token == kind) return row.op;
    return Operator::none;
}

// Its block has ended where the line that follows starts.
bool ends_with_function(const Item& item) {
    return !item.body.empty() && item.body.back().kind == StatementKind::function;
}

} // namespace

// body = "=" expression | "{" statements "}"
void Parser::body(Item& item, std::string_view what) {
    const std::size_t errors_before = result_.diagnostics.size();
    std::size_t brace = 0;
    while (at(TokenKind::newline, brace))
        ++brace;
    if (at(TokenKind::left_brace, brace)) {
        skip_newlines();
        braced_body(item);
    } else if (accept(TokenKind::assign)) {
        skip_newlines();
        if (at(TokenKind::left_brace)) {
            error(token().span, "unexpected '{' after '='",
                  "a body in braces has no '=' before it: " + std::string(what) + " { ... }");
        } else if (at(TokenKind::kw_return)) {
            error(token().span, "unexpected 'return' after '='", "write the expression alone");
        } else {
            result_statement(item, token().span, false);
        }
    } else {
        unexpected("'=' or '{' after " + std::string(what));
    }
    if (result_.diagnostics.size() == errors_before) check_body(item);
}

void Parser::braced_body(Item& item) {
    const Token opener = token();
    if (!open(TokenKind::left_brace)) return;
    const std::size_t errors_before = result_.diagnostics.size();
    for (;;) {
        while (at(TokenKind::newline) || at(TokenKind::semicolon))
            advance();
        if (at(TokenKind::right_brace) || at(TokenKind::end)) break;
        statement(item);
        if (!failed_ && !ends_with_function(item)) end_statement();
        if (failed_) {
            skip_statement();
            failed_ = false;
        }
    }
    if (result_.diagnostics.size() == errors_before)
        close(TokenKind::right_brace, opener);
    else
        accept(TokenKind::right_brace);
}

void Parser::indented_body(Item& item, std::uint32_t outer_indent) {
    const Token colon = tokens_[next_ - 1];
    if (!at(TokenKind::newline)) {
        // def f(x): return x
        while (!failed_ && !at(TokenKind::newline) && !at(TokenKind::end)) {
            statement(item);
            if (!failed_ && !accept(TokenKind::semicolon)) break;
        }
        if (!failed_) end_statement();
        return;
    }
    skip_newlines();
    const std::uint32_t indent = token().indent;
    if (at(TokenKind::end) || indent <= outer_indent) {
        error(colon.span, "expected an indented body after ':'");
        return;
    }
    for (;;) {
        while (at(TokenKind::newline) || at(TokenKind::semicolon))
            advance();
        const Token first = token();
        if (first.kind == TokenKind::end || first.kind == TokenKind::right_brace) break;
        if (first.starts_line && first.indent <= outer_indent) break;
        if (first.starts_line && first.indent != indent)
            error(first.span, "this line's indentation does not match the lines above it");
        else
            statement(item);
        if (!failed_ && !ends_with_function(item)) end_statement();
        if (failed_) {
            skip_statement();
            skip_block(first.indent);
            failed_ = false;
        }
    }
}

// statement = [ "return" ] expression | name [ ":" type ] "=" expression | name op "=" expression
void Parser::statement(Item& item) {
    const Token first = token();
    if (first.kind == TokenKind::string &&
        (at(TokenKind::newline, 1) || at(TokenKind::semicolon, 1) || at(TokenKind::end, 1) ||
         at(TokenKind::right_brace, 1))) {
        advance(); // a docstring
        return;
    }
    if (at_word("def") && at(TokenKind::identifier, 1) && !is_inner_) {
        inner_function(item);
        return;
    }
    if (refuse_statement() || skip_attribute_assignment()) return;
    if (first.kind == TokenKind::identifier) {
        const TokenKind next = token(1).kind;
        if (next == TokenKind::assign || next == TokenKind::colon ||
            augmented(next) != Operator::none) {
            assignment(item);
            return;
        }
    }
    if (accept(TokenKind::kw_return)) {
        if (at_statement_end()) {
            error(first.span, "'return' without a value", "write return and the value");
            return;
        }
        result_statement(item, first.span, true);
        return;
    }
    result_statement(item, first.span, false);
}

// def inside a body: a function that sees the names of the body
void Parser::inner_function(Item& item) {
    is_inner_ = true;
    Item inner = python_function();
    is_inner_ = false;
    if (failed_) return;
    Statement statement;
    statement.kind = StatementKind::function;
    statement.span = inner.span;
    statement.name_span = inner.name_span;
    statement.name = inner.name;
    statement.function = static_cast<std::uint32_t>(result_.ast.functions.size());
    result_.ast.functions.push_back(std::move(inner));
    item.body.push_back(std::move(statement));
}

// mask.__name__ = ... says nothing about what is computed.
bool Parser::skip_attribute_assignment() {
    const bool names = at(TokenKind::identifier) && at(TokenKind::dot, 1) &&
                       (at_word("__name__", 2) || at_word("__doc__", 2)) &&
                       at(TokenKind::assign, 3);
    if (names) skip_statement();
    return names;
}

void Parser::result_statement(Item& item, Span from, bool is_return) {
    Statement statement;
    statement.value = expression();
    if (failed_) return;
    const Expr& value = result_.ast[statement.value];
    if (at(TokenKind::comma)) {
        error(token().span, "tuples are not supported",
              is_return ? "return one value" : "assign one name in each statement");
        return;
    }
    if (at(TokenKind::assign) || augmented(token().kind) != Operator::none) {
        if (value.kind == ExprKind::index)
            error(value.span, "a buffer cannot be written", "only names can be assigned");
        else
            error(token().span, "unexpected '" + text(token()) + "'",
                  at(TokenKind::assign) ? "to compare, write '=='" : "only names can be assigned");
        return;
    }
    statement.kind = StatementKind::result;
    statement.span = span_from(from);
    item.body.push_back(std::move(statement));
}

void Parser::assignment(Item& item) {
    const Token name = advance();
    Statement statement;
    statement.name = text(name);
    statement.name_span = name.span;
    if (at(TokenKind::colon)) {
        skip_annotation();
        if (failed_) return;
    }
    statement.op = augmented(token().kind);
    statement.kind =
        statement.op == Operator::none ? StatementKind::assign : StatementKind::augment;
    if (statement.op == Operator::none && !at(TokenKind::assign)) {
        unexpected("'='");
        return;
    }
    advance();
    skip_newlines();
    statement.value = expression();
    if (failed_) return;
    if (at(TokenKind::assign)) {
        error(token().span, "one statement assigns one name",
              "write two statements, or '==' to compare");
        return;
    }
    if (at(TokenKind::comma)) {
        error(token().span, "tuples are not supported", "assign one name in each statement");
        return;
    }
    statement.span = span_from(name.span);
    item.body.push_back(std::move(statement));
}

// The value is there, once, and last.
void Parser::check_body(Item& item) {
    for (std::size_t i = 0; i + 1 < item.body.size(); ++i) {
        const Statement& statement = item.body[i];
        if (statement.kind != StatementKind::result) continue;
        const std::string_view next = source_.slice(item.body[i + 1].span);
        if (text(statement.span).starts_with("return"))
            error(item.body[i + 1].span, "this statement comes after the return", "",
                  {{statement.span, "the value is returned here"}});
        else if (next.starts_with('+') || next.starts_with('-'))
            error(item.body[i + 1].span, "this line starts a new statement",
                  "to go on in the next line, end this one with the operator or use parentheses");
        else
            error(statement.span, "this value is not used",
                  "the last statement of a body is its value; give this one a name or delete it");
        break;
    }
    if (!failed_ && (item.body.empty() || item.body.back().kind != StatementKind::result)) {
        std::string last = item.body.empty() ? "score" : item.body.back().name;
        error(item.name_span, "'" + item.name + "' has no value",
              "end its body with an expression, such as " +
                  (item.python ? "return " + last : last));
    }
    failed_ = false;
}

bool Parser::at_statement_end() const {
    return at(TokenKind::newline) || at(TokenKind::semicolon) || at(TokenKind::end) ||
           at(TokenKind::right_brace);
}

void Parser::end_statement() {
    if (at_statement_end()) return;
    const Token next = token();
    const bool value = next.kind == TokenKind::identifier || next.kind == TokenKind::integer ||
                       next.kind == TokenKind::real;
    if (value)
        error(next.span, "expected an operator before " + describe(next),
              "a product needs '*', a new statement a new line or ';'");
    else
        unexpected("an operator or the end of the statement");
}

// To the end of the statement, over balanced braces.
void Parser::skip_statement() {
    depth_ = 0;
    std::size_t braces = 0;
    while (!at(TokenKind::end)) {
        if (braces == 0 && at_statement_end()) return;
        if (at(TokenKind::left_brace) && token().has_partner) ++braces;
        if (at(TokenKind::right_brace) && token().has_partner) --braces;
        advance();
    }
}

// The lines that belong to a refused statement: those indented deeper, and its else branches.
void Parser::skip_block(std::uint32_t indent) {
    while (at(TokenKind::newline)) {
        std::size_t ahead = 0;
        while (at(TokenKind::newline, ahead))
            ++ahead;
        const Token& first = token(ahead);
        const bool branch = at(TokenKind::kw_else, ahead) || at_word("elif", ahead) ||
                            at_word("except", ahead) || at_word("finally", ahead);
        if (first.kind == TokenKind::end || first.kind == TokenKind::right_brace) return;
        if (first.indent < indent || (first.indent == indent && !branch)) return;
        skip_newlines();
        skip_statement();
        while (accept(TokenKind::semicolon))
            skip_statement();
    }
}

} // namespace flexc::dsl
