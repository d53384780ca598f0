// Items of a program, and what all of the parser shares.
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
    if (refuse_statement()) return;
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

// buffer = "buffer" name ":" type "[" [ dim { "," dim } ] "]" [ "grad" ]
void Parser::buffer_item() {
    const Token first = advance();
    Item item;
    item.kind = ItemKind::buffer;
    if (!typed_name(item, "buffer NAME: TYPE[DIMS]")) return;
    const Token opener = token();
    if (opener.kind != TokenKind::left_bracket) {
        error(opener.span, "expected '[' after the type, got " + describe(opener),
              "write the dims, as in " + item.type + "[H], or " + item.type +
                  "[] for a single number");
        return;
    }
    if (!open(TokenKind::left_bracket)) return;
    while (!at(TokenKind::right_bracket)) {
        item.dims.push_back(expression());
        if (!failed_ && !at(TokenKind::comma) && !at(TokenKind::right_bracket))
            unexpected("',' or ']'");
        if (failed_) return;
        accept(TokenKind::comma);
    }
    close(TokenKind::right_bracket, opener);
    if (at_word("grad")) {
        item.grad_span = advance().span;
        item.grad = true;
    }
    if (at(TokenKind::identifier))
        error(token().span, "expected 'grad' or the end of the line, got " + describe(token()));
    if (at(TokenKind::assign))
        error(token().span, "a buffer has no value in the text",
              "its tensor is passed at run time");
    finish_item(std::move(item), first.span.begin);
}

// param = "param" name ":" type [ "=" expression ]
void Parser::param_item() {
    const Token first = advance();
    Item item;
    item.kind = ItemKind::param;
    if (!typed_name(item, "param NAME: TYPE = DEFAULT")) return;
    if (at(TokenKind::left_bracket)) {
        error(token().span, "a param is a single number",
              "write buffer " + item.name + ": " + item.type + "[...] for an array");
        return;
    }
    if (accept(TokenKind::assign)) {
        skip_newlines();
        item.value = expression();
    }
    finish_item(std::move(item), first.span.begin);
}

// constant = [ "const" ] name "=" expression
void Parser::constant_item(bool bare) {
    const std::uint32_t begin = bare ? token().span.begin : previous_span().begin;
    Item item;
    item.kind = ItemKind::constant;
    item.bare = bare;
    if (!name_of(item, "const")) return;
    if (at(TokenKind::colon)) skip_annotation();
    if (failed_ || !expect(TokenKind::assign, "after the name of a const")) return;
    skip_newlines();
    item.value = expression();
    finish_item(std::move(item), begin);
}

// function = "fn" name "(" parameters ")" body
void Parser::function_item() {
    const Token first = advance();
    Item item;
    item.kind = ItemKind::function;
    if (!name_of(item, "fn") || !parameter_list(item)) return;
    if (at(TokenKind::arrow)) skip_annotation();
    if (!failed_) body(item, "fn " + item.name + "(...)");
    finish_item(std::move(item), first.span.begin);
}

// def = "def" name "(" parameters ")" [ "->" type ] ":" indented-statements
void Parser::python_item() {
    const Token first = advance();
    Item item;
    item.kind = ItemKind::function;
    item.python = true;
    if (!name_of(item, "def") || !parameter_list(item)) return;
    if (at(TokenKind::arrow)) skip_annotation();
    if (failed_ || !expect(TokenKind::colon, "after the parameters of a def")) return;
    const std::size_t errors_before = result_.diagnostics.size();
    indented_body(item, first.indent);
    if (result_.diagnostics.size() == errors_before) check_body(item);
    finish_item(std::move(item), first.span.begin);
}

// mod = ( "score_mod" | "mask_mod" ) body
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

bool Parser::parameter_list(Item& item) {
    const Token opener = token();
    if (opener.kind != TokenKind::left_paren) {
        unexpected("'(' and the parameters");
        return false;
    }
    if (!open(TokenKind::left_paren)) return false;
    while (!at(TokenKind::right_paren)) {
        if (at(TokenKind::times) || at(TokenKind::power)) {
            error(token().span, "a function has a fixed number of parameters", "name each of them");
            return false;
        }
        if (!at(TokenKind::identifier)) {
            unexpected("the name of a parameter");
            return false;
        }
        Parameter parameter;
        parameter.name = text(token());
        parameter.span = advance().span;
        if (at(TokenKind::colon)) skip_annotation();
        if (!failed_ && accept(TokenKind::assign)) parameter.default_value = expression();
        if (!failed_ && !at(TokenKind::comma) && !at(TokenKind::right_paren))
            unexpected("',' or ')'");
        if (failed_) return false;
        item.parameters.push_back(std::move(parameter));
        accept(TokenKind::comma);
    }
    close(TokenKind::right_paren, opener);
    return !failed_;
}

// From ':' or '->' over a type, which is not read.
void Parser::skip_annotation() {
    const Token first = advance();
    const std::size_t begin = next_;
    std::size_t depth = 0;
    for (; !at(TokenKind::end) && !at(TokenKind::newline); advance()) {
        const TokenKind kind = token().kind;
        if (depth == 0 && (kind == TokenKind::comma || kind == TokenKind::assign ||
                           kind == TokenKind::right_paren || kind == TokenKind::colon ||
                           kind == TokenKind::semicolon || kind == TokenKind::left_brace ||
                           kind == TokenKind::right_brace))
            break;
        if (kind == TokenKind::left_bracket || kind == TokenKind::left_paren) ++depth;
        if ((kind == TokenKind::right_bracket || kind == TokenKind::right_paren) && depth > 0)
            --depth;
    }
    if (next_ == begin) error(first.span, "expected a type after '" + text(first) + "'");
}

bool Parser::typed_name(Item& item, std::string_view form) {
    if (!name_of(item, form.substr(0, form.find(' ')))) return false;
    if (!at(TokenKind::colon)) {
        error(token().span,
              "expected ':' and a type after '" + item.name + "', got " + describe(token()),
              "write " + std::string(form));
        return false;
    }
    advance();
    if (!at(TokenKind::identifier)) {
        error(token().span, "expected a type, got " + describe(token()),
              "write " + std::string(form));
        return false;
    }
    const Token type = advance();
    item.type_span = type.span;
    item.type = text(type);
    // torch.float32: the front end says how the type is called here.
    if (item.type == "torch" && at(TokenKind::dot) && at(TokenKind::identifier, 1)) {
        advance();
        item.type = text(advance());
        item.type_span = span_from(type.span);
    }
    return true;
}

bool Parser::name_of(Item& item, std::string_view what) {
    if (!at(TokenKind::identifier)) {
        const bool keyword = token().kind >= TokenKind::kw_and;
        error(token().span,
              keyword
                  ? "'" + text(token()) + "' is a word of the language and cannot be a name"
                  : "expected a name after '" + std::string(what) + "', got " + describe(token()));
        return false;
    }
    item.name_span = token().span;
    item.name = text(advance());
    return true;
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
