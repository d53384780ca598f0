// What a text says, before names and types are known. Expressions lie in one arena.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsl/source.h"

namespace flexc::dsl {

enum class Operator : std::uint8_t {
    none,
    add,
    subtract,
    multiply,
    divide,
    floor_divide,
    modulo,
    power,
    bit_and,
    bit_or,
    bit_xor,
    shift_left,
    shift_right,
    logical_and,
    logical_or,
    less,
    less_equal,
    greater,
    greater_equal,
    equal,
    not_equal,
    negate,
    plus,
    invert,
    logical_not,
};
std::string_view spelling(Operator op); // Python's: "and", "not", "//"

using ExprId = std::uint32_t;
inline constexpr ExprId kNoExpr = ~ExprId{0};

enum class ExprKind : std::uint8_t {
    boolean, // integer
    integer, // integer
    real,    // real
    name,    // name; qualified: written with a torch. or math. prefix
    unary,   // op, operand
    binary, // op, left, right: the left side may be long, the others are nested at most kMaxNesting
    compare,     // comparisons between neighbouring operands
    conditional, // condition, then, otherwise
    call,        // callee (a name), arguments
    index,       // base, indices
    sum,         // name: what counts; first, end, term
};

struct Expr {
    ExprKind kind = ExprKind::integer;
    Operator op = Operator::none;
    bool qualified = false;
    bool parenthesised = false; // for messages only: the tree holds the grouping
    Span span;                  // parentheses included
    std::int64_t integer = 0;
    double real = 0;
    std::string name;
    std::vector<ExprId> operands;
    std::vector<Operator> comparisons;
    std::vector<std::string> keywords; // call: one per argument, empty when given by position
    std::vector<Span> argument_spans;  // call: keywords included
};

enum class StatementKind : std::uint8_t { assign, augment, function, result };

struct Statement {
    StatementKind kind = StatementKind::result;
    Operator op = Operator::none; // augment
    Span span;
    Span name_span;
    std::string name;
    ExprId value = kNoExpr;
    std::uint32_t function = 0; // in Ast::functions: a def inside a body
};

// The last statement, and only that one, is the result.
using Body = std::vector<Statement>;

struct Parameter {
    std::string name;
    Span span;
    ExprId default_value = kNoExpr;
};

enum class ItemKind : std::uint8_t {
    buffer,     // name: type[dims] grad
    param,      // name: type = value
    constant,   // name = value; bare: without the word const
    function,   // name(parameters) body; python: written with def
    score_mod,  // body
    mask_mod,   // body
    sink,       // body; value: that of "sink = value", which is a constant's if something reads it
    expression, // value: a program of one expression
};

struct Item {
    ItemKind kind = ItemKind::expression;
    bool grad = false;
    bool bare = false;
    bool python = false;
    Span span;
    Span name_span;
    Span type_span;
    Span grad_span;
    std::string name;
    std::string type;
    std::vector<ExprId> dims;
    ExprId value = kNoExpr;
    std::vector<Parameter> parameters;
    Body body;
};

struct Ast {
    std::vector<Expr> exprs;
    std::vector<Item> items;
    std::vector<Item> functions; // that stand inside bodies

    const Expr& operator[](ExprId id) const { return exprs[id]; }
};

// Canonical text, which parses to the same tree.
std::string print_ast(const Ast& ast);
std::string print_expression(const Ast& ast, ExprId id);

} // namespace flexc::dsl
