// The typing rules of operators: Python's meaning, bool -> int -> f32 promotion.
#pragma once

#include <string>

#include "dsl/ast.h"
#include "front/builder.h"

namespace flexc::front {

ir::NodeId lower_unary(Builder& build, dsl::Operator op, Operand x, dsl::Span span);
ir::NodeId lower_binary(Builder& build, dsl::Operator op, Operand x, Operand y, dsl::Span span);
ir::NodeId lower_comparison(Builder& build, dsl::Operator op, Operand x, Operand y, dsl::Span span);
// what: "the condition of 'where'", for messages.
ir::NodeId lower_select(Builder& build, const std::string& what, Operand condition, Operand x,
                        Operand y, dsl::Span span);
ir::NodeId lower_power(Builder& build, Operand x, Operand y, dsl::Span span);

// Converts both to f32, or both to integers if neither is f32. True if they are f32.
bool promote(Builder& build, Operand& x, Operand& y);
// "bool", "an integer", "f32" with their article, for messages.
std::string a_type(ir::Type type);

} // namespace flexc::front
