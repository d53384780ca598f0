// The recursive-descent parser, private to dsl/. Rule names are grammar.ebnf's.
//   parser.cpp               a program, its mods, and what the others share
//   parser_declarations.cpp  buffers, params, consts, functions
//   parser_statements.cpp    bodies
//   parser_expressions.cpp   operators, calls and reads, by precedence
//   parser_primary.cpp       literals, names, parentheses
//   parser_refusals.cpp      what pasted Python may have and this language has not
#pragma once

#include <string>
#include <string_view>

#include "dsl/lexer.h"
#include "dsl/parser.h"

namespace flexc::dsl {

class Parser {
  public:
    explicit Parser(const Source& source);
    Parsed run();

  private:
    // --- items
    void item();
    bool declaration();
    void buffer_item();
    void param_item();
    void constant_item(bool bare);
    void function_item();
    void python_item();
    Item python_function();
    void mod_item(ItemKind kind);
    void expression_item();
    bool parameter_list(Item& item);
    void skip_annotation();
    bool typed_name(Item& item, std::string_view form);
    bool name_of(Item& item, std::string_view what);
    void finish_item(Item item, std::size_t first);
    bool skip_attribute_assignment();

    // --- bodies
    void body(Item& item, std::string_view what);
    void braced_body(Item& item);
    void indented_body(Item& item, std::uint32_t outer_indent);
    void statement(Item& item);
    void result_statement(Item& item, Span from, bool is_return);
    void assignment(Item& item);
    void inner_function(Item& item);
    void check_body(Item& item);
    bool refuse_statement();
    void skip_statement();
    void skip_block(std::uint32_t indent);
    bool at_statement_end() const;
    void end_statement();

    // --- expressions
    // What these do beside calling each other has functions of its own: their frames are the stack
    // that a deep program needs.
    ExprId expression();
    ExprId conditional(ExprId first);
    ExprId binary(int minimum);
    ExprId add_binary(Operator op, ExprId left, ExprId right);
    ExprId prefix(int minimum);
    ExprId unary(Operator op, int operand_minimum);
    ExprId comparison(ExprId first);
    ExprId postfix(ExprId base);
    ExprId call(ExprId callee);
    ExprId method_call(ExprId object);
    ExprId arguments(Expr call, const Token& opener, Span from);
    ExprId sum(Span callee, const Token& opener);
    ExprId index(ExprId base);
    ExprId primary();
    ExprId parenthesised();
    ExprId end_parenthesised(const Token& opener, ExprId inner);
    ExprId dotted_name();
    ExprId integer_literal();
    ExprId real_literal();
    ExprId string_as_number(Span call_span, std::size_t token);
    bool at_method(ExprId base) const;
    void refuse_attribute(ExprId base);
    bool refuse_operator();

    // --- tokens
    const Token& token(std::size_t ahead = 0) const;
    bool at(TokenKind kind, std::size_t ahead = 0) const { return token(ahead).kind == kind; }
    bool at_word(std::string_view word, std::size_t ahead = 0) const;
    bool accept(TokenKind kind);
    bool expect(TokenKind kind, std::string_view context);
    bool open(TokenKind kind);
    void close(TokenKind kind, const Token& opener);
    Token advance();
    void skip_newlines();
    std::string text(const Token& token) const { return std::string(source_.slice(token.span)); }
    std::string text(Span span) const { return std::string(source_.slice(span)); }
    std::string describe(const Token& token) const;
    Span previous_span() const { return tokens_[next_ == 0 ? 0 : next_ - 1].span; }
    Span span_from(Span first) const { return {first.begin, previous_span().end}; }

    // --- errors: after one, the rest of the statement is skipped
    void error(Span span, std::string message, std::string hint = {}, std::vector<Note> notes = {});
    void unexpected(std::string_view wanted);
    bool enter(Span span); // one level deeper; false and an error when too deep
    void leave() { --depth_; }

    ExprId add(Expr expr);

    const Source& source_;
    std::vector<Token> tokens_;
    std::size_t next_ = 0;
    int depth_ = 0;
    bool failed_ = false;
    bool is_inner_ = false; // in a function inside a body
    Parsed result_;
};

} // namespace flexc::dsl
