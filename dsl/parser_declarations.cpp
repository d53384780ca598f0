// Buffers, params, consts and functions.
#include "dsl/parser_state.h"

namespace flexc::dsl {

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
    const std::uint32_t begin = token().span.begin;
    finish_item(python_function(), begin);
}

Item Parser::python_function() {
    const Token first = advance();
    Item item;
    item.kind = ItemKind::function;
    item.python = true;
    if (!name_of(item, "def") || !parameter_list(item)) return item;
    if (at(TokenKind::arrow)) skip_annotation();
    if (failed_ || !expect(TokenKind::colon, "after the parameters of a def")) return item;
    const std::size_t errors_before = result_.diagnostics.size();
    indented_body(item, first.indent);
    if (result_.diagnostics.size() == errors_before) check_body(item);
    item.span = span_from(first.span);
    return item;
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
        for (const Parameter& before : item.parameters)
            if (before.name == parameter.name)
                error(parameter.span, "a second parameter is called '" + before.name + "'", "",
                      {{before.span, "the first one is here"}});
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

} // namespace flexc::dsl
