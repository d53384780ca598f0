// A program and its mods, and what all of the parser shares.
#include "dsl/parser.h"

#include "dsl/parser_state.h"

namespace flexc::dsl {

namespace {
constexpr std::size_t kMaxParseErrors = 20;
}

Parsed parse(const Source& source) { return Parser(source).run(); }

Parser::Parser(const Source& source) : source_(source) {
    Tokens tokens = lex(source);
    tokens_ = std::move(tokens.list);
    result_.diagnostics = std::move(tokens.diagnostics);
}

Parsed Parser::run() {
    if (!result_.diagnostics.empty()) return std::move(result_);
    for (;;) {
        while (at(TokenKind::newline) || at(TokenKind::semicolon))
            advance();
        if (at(TokenKind::end) || result_.diagnostics.size() >= kMaxParseErrors) break;
        const Token first = token();
        const std::size_t before = next_;
        item();
        const bool ended = token().starts_line || tokens_[next_ - 1].kind == TokenKind::right_brace;
        if (!failed_ && !ended) end_statement();
        if (failed_) {
            skip_statement();
            skip_block(first.indent);
            failed_ = false;
        }
        if (next_ == before) advance();
        depth_ = 0;
    }
    return std::move(result_);
}

// item = buffer | param | constant | function | mod | expression
void Parser::item() {
    if (at(TokenKind::identifier) && declaration()) return;
    if (at(TokenKind::string) && (at(TokenKind::newline, 1) || at(TokenKind::end, 1))) {
        advance(); // a docstring
        return;
    }
    if (refuse_statement() || skip_attribute_assignment()) return;
    switch (token().kind) {
    case TokenKind::right_brace: error(token().span, "unexpected '}'"); return;
    case TokenKind::at:
        error(token().span, "decorators are not supported", "delete the line");
        return;
    case TokenKind::kw_return:
        error(token().span, "'return' outside a body", "write score_mod = ... or mask_mod = ...");
        return;
    default: expression_item();
    }
}

bool Parser::declaration() {
    const std::string word = text(token());
    const TokenKind next = token(1).kind;
    const bool named =
        next == TokenKind::identifier || next == TokenKind::integer || next == TokenKind::colon ||
        (next >= TokenKind::kw_and && next <= TokenKind::kw_lambda && next != TokenKind::kw_if &&
         next != TokenKind::kw_and && next != TokenKind::kw_or);
    if (named && word == "buffer") return buffer_item(), true;
    if (named && word == "param") return param_item(), true;
    if (named && word == "const") return advance(), constant_item(false), true;
    if (named && word == "fn") return function_item(), true;
    if (named && word == "def") return python_item(), true;
    if (word == "score_mod") return mod_item(ItemKind::score_mod), true;
    if (word == "mask_mod") return mod_item(ItemKind::mask_mod), true;
    if (word == "sink" && (next == TokenKind::assign || next == TokenKind::left_brace))
        return mod_item(ItemKind::sink), true;
    const bool annotated = next == TokenKind::colon && at(TokenKind::assign, 3);
    if (next == TokenKind::assign || annotated) return constant_item(true), true;
    if (next == TokenKind::colon) {
        error(token().span, "expected a declaration",
              "write buffer " + word + ": f32[H], param " + word + ": f32 = 1.0 or const " + word +
                  " = 1");
        return true;
    }
    if (next >= TokenKind::plus_assign && next <= TokenKind::xor_assign) {
        error(token(1).span, "an assignment stands inside a body",
              "write score_mod { " + word + " " + text(token(1)) + " ...; " + word + " }");
        return true;
    }
    return false;
}

// mod = ( "score_mod" | "mask_mod" | "sink" ) body
void Parser::mod_item(ItemKind kind) {
    const Token first = advance();
    Item item;
    item.kind = kind;
    item.name = text(first);
    item.name_span = first.span;
    if (at(TokenKind::left_paren)) {
        error(token().span, "unexpected '(' after '" + item.name + "'",
              "write " + item.name + " = ..., or def " + item.name + "(...): with a body below");
        return;
    }
    body(item, item.name);
    if (kind == ItemKind::sink && item.body.size() == 1) {
        item.bare = true;
        item.value = item.body.front().value;
    }
    finish_item(std::move(item), first.span.begin);
}

void Parser::expression_item() {
    const Token first = token();
    Item item;
    item.kind = ItemKind::expression;
    item.value = expression();
    if (!failed_ && at(TokenKind::assign))
        error(token().span, "unexpected '='", "to compare, write '=='");
    if (!failed_ && at(TokenKind::comma))
        error(token().span, "tuples are not supported", "a mod has one value");
    finish_item(std::move(item), first.span.begin);
}

void Parser::finish_item(Item item, std::size_t first) {
    if (failed_) return;
    item.span = {static_cast<std::uint32_t>(first), previous_span().end};
    result_.ast.items.push_back(std::move(item));
}

// --- tokens
// ----------------------------------------------------------------------------------------

const Token& Parser::token(std::size_t ahead) const {
    return tokens_[next_ + ahead < tokens_.size() ? next_ + ahead : tokens_.size() - 1];
}

bool Parser::at_word(std::string_view word, std::size_t ahead) const {
    return at(TokenKind::identifier, ahead) && source_.slice(token(ahead).span) == word;
}

Token Parser::advance() {
    const Token current = token();
    if (next_ + 1 < tokens_.size()) ++next_;
    return current;
}

bool Parser::accept(TokenKind kind) {
    if (!at(kind)) return false;
    advance();
    return true;
}

bool Parser::expect(TokenKind kind, std::string_view context) {
    if (accept(kind)) return true;
    unexpected("'" + std::string(spelling(kind)) + "' " + std::string(context));
    return false;
}

bool Parser::open(TokenKind kind) {
    if (!token().has_partner) {
        error(token().span, "'" + std::string(spelling(kind)) + "' was never closed");
        return false;
    }
    advance();
    return true;
}

void Parser::close(TokenKind kind, const Token& opener) {
    if (failed_ || accept(kind)) return;
    const std::string wanted = "'" + std::string(spelling(kind)) + "'";
    const Token next = token();
    const bool value = next.kind == TokenKind::identifier || next.kind == TokenKind::integer ||
                       next.kind == TokenKind::real || next.kind == TokenKind::left_paren;
    error(next.span,
          "expected " + std::string(value ? "an operator or " : "") + wanted + ", got " +
              describe(next),
          "", {{opener.span, "to match this '" + std::string(source_.slice(opener.span)) + "'"}});
}

void Parser::skip_newlines() {
    while (at(TokenKind::newline))
        advance();
}

std::string Parser::describe(const Token& token) const {
    switch (token.kind) {
    case TokenKind::end: return "the end of the text";
    case TokenKind::newline: return "the end of the line";
    case TokenKind::string: return "a string";
    default: {
        const std::string written = text(token);
        return "'" + (written.size() > 40 ? written.substr(0, 40) + "..." : written) + "'";
    }
    }
}

void Parser::error(Span span, std::string message, std::string hint, std::vector<Note> notes) {
    if (failed_) return;
    failed_ = true;
    result_.diagnostics.push_back({.span = span,
                                   .message = std::move(message),
                                   .hint = std::move(hint),
                                   .notes = std::move(notes)});
}

void Parser::unexpected(std::string_view wanted) {
    error(token().span, "expected " + std::string(wanted) + ", got " + describe(token()));
}

bool Parser::enter(Span span) {
    if (depth_ >= kMaxNesting) {
        error(span, "expressions are nested more than 256 levels deep",
              "give the inner parts names of their own");
        return false;
    }
    ++depth_;
    return true;
}

} // namespace flexc::dsl
