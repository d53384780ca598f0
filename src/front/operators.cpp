#include "front/operators.h"

namespace flexc::front {

using dsl::Operator;
using ir::kNoNode;
using ir::NodeId;
using ir::Op;
using ir::Type;

namespace {

std::string quoted(Operator op) {
    if (op == Operator::logical_not) return "'not'";
    return "'" + std::string(dsl::spelling(op)) + "'";
}

struct Pair {
    Op integer;
    Op real;
};

Pair arithmetic(Operator op) {
    switch (op) {
    case Operator::add: return {Op::iadd, Op::fadd};
    case Operator::subtract: return {Op::isub, Op::fsub};
    case Operator::multiply: return {Op::imul, Op::fmul};
    case Operator::floor_divide: return {Op::ifloordiv, Op::ffloordiv};
    default: return {Op::imod, Op::fmod};
    }
}

NodeId refuse_real(Builder& build, Operator op, Operand operand, std::string_view needs) {
    build.report().error(operand.span,
                         quoted(op) + " needs " + std::string(needs) + ", but this is f32",
                         op == Operator::power || op == Operator::bit_xor
                             ? "a power is written **; for bits write int(...)"
                             : "write int(...) around it");
    return kNoNode;
}

// 'and', 'or', 'not' do not guess what a number means.
bool check_bool(Builder& build, Operator op, Operand operand) {
    if (operand.node == kNoNode) return false;
    const Type type = build.type(operand.node);
    if (type == Type::boolean) return true;
    build.report().error(operand.span,
                         quoted(op) + " needs bool operands, but this is " + a_type(type),
                         "write (... != 0)");
    return false;
}

NodeId lower_logical(Builder& build, Operator op, Operand x, Operand y, dsl::Span span) {
    const bool left = check_bool(build, op, x);
    const bool right = check_bool(build, op, y);
    if (!left || !right) return kNoNode;
    return build.apply(op == Operator::logical_and ? Op::band : Op::bor, {x.node, y.node}, span);
}

NodeId lower_bits(Builder& build, Operator op, Operand x, Operand y, dsl::Span span) {
    const Type left = build.type(x.node), right = build.type(y.node);
    if (left == Type::real) return refuse_real(build, op, x, "bools or integers");
    if (right == Type::real) return refuse_real(build, op, y, "bools or integers");
    const bool logical = left == Type::boolean && right == Type::boolean;
    if (!logical && left != right)
        build.report().warning(span, quoted(op) + " of a bool and an integer works on bits",
                               quoted(op) +
                                   " binds tighter than comparisons: put those in parentheses");
    const Pair ops = op == Operator::bit_and  ? Pair{Op::iand, Op::band}
                     : op == Operator::bit_or ? Pair{Op::ior, Op::bor}
                                              : Pair{Op::ixor, Op::bxor};
    if (logical) return build.apply(ops.real, {x.node, y.node}, span);
    return build.apply(ops.integer,
                       {build.to_integer(x.node, x.span), build.to_integer(y.node, y.span)}, span);
}

NodeId lower_shift(Builder& build, Operator op, Operand x, Operand y, dsl::Span span) {
    if (build.type(x.node) == Type::real) return refuse_real(build, op, x, "integers");
    if (build.type(y.node) == Type::real) return refuse_real(build, op, y, "integers");
    if (const auto count = build.constant(y.node); count && count->integer < 0) {
        build.report().error(y.span, "negative shift count");
        return kNoNode;
    }
    return build.apply(op == Operator::shift_left ? Op::ishl : Op::ishr,
                       {build.to_integer(x.node, x.span), build.to_integer(y.node, y.span)}, span);
}

} // namespace

std::string a_type(Type type) {
    return type == Type::integer ? "an integer" : std::string(name(type));
}

bool promote(Builder& build, Operand& x, Operand& y) {
    const bool real = build.type(x.node) == Type::real || build.type(y.node) == Type::real;
    x.node = real ? build.to_real(x.node, x.span) : build.to_integer(x.node, x.span);
    y.node = real ? build.to_real(y.node, y.span) : build.to_integer(y.node, y.span);
    return real;
}

NodeId lower_unary(Builder& build, Operator op, Operand x, dsl::Span span) {
    if (x.node == kNoNode) return kNoNode;
    const Type type = build.type(x.node);
    switch (op) {
    case Operator::logical_not:
        return check_bool(build, op, x) ? build.apply(Op::bnot, {x.node}, span) : kNoNode;
    case Operator::invert:
        if (type == Type::real) return refuse_real(build, op, x, "a bool or an integer");
        return build.apply(type == Type::boolean ? Op::bnot : Op::inot, {x.node}, span);
    case Operator::plus: return type == Type::boolean ? build.to_integer(x.node, span) : x.node;
    default:
        if (type == Type::real) return build.apply(Op::fneg, {x.node}, span);
        return build.apply(Op::ineg, {build.to_integer(x.node, x.span)}, span);
    }
}

NodeId lower_binary(Builder& build, Operator op, Operand x, Operand y, dsl::Span span) {
    const bool logical = op == Operator::logical_and || op == Operator::logical_or;
    if (logical) return lower_logical(build, op, x, y, span);
    if (x.node == kNoNode || y.node == kNoNode) return kNoNode;
    switch (op) {
    case Operator::bit_and:
    case Operator::bit_or:
    case Operator::bit_xor: return lower_bits(build, op, x, y, span);
    case Operator::shift_left:
    case Operator::shift_right: return lower_shift(build, op, x, y, span);
    case Operator::power: return lower_power(build, x, y, span);
    case Operator::divide:
        return build.apply(Op::fdiv, {build.to_real(x.node, x.span), build.to_real(y.node, y.span)},
                           span);
    default: break;
    }
    const bool real = promote(build, x, y);
    if (x.node == kNoNode || y.node == kNoNode) return kNoNode;
    const bool divides = op == Operator::floor_divide || op == Operator::modulo;
    if (const auto divisor = build.constant(y.node);
        divides && !real && divisor && divisor->integer == 0)
        build.report().warning(y.span, "integer division by zero gives 0");
    const Pair ops = arithmetic(op);
    return build.apply(real ? ops.real : ops.integer, {x.node, y.node}, span);
}

NodeId lower_comparison(Builder& build, Operator op, Operand x, Operand y, dsl::Span span) {
    if (x.node == kNoNode || y.node == kNoNode) return kNoNode;
    const bool real = promote(build, x, y);
    const bool swapped = op == Operator::greater || op == Operator::greater_equal;
    if (swapped) std::swap(x, y);
    const Pair ops = op == Operator::less || op == Operator::greater ? Pair{Op::ilt, Op::flt}
                     : op == Operator::less_equal || op == Operator::greater_equal
                         ? Pair{Op::ile, Op::fle}
                     : op == Operator::equal ? Pair{Op::ieq, Op::feq}
                                             : Pair{Op::ine, Op::fne};
    return build.apply(real ? ops.real : ops.integer, {x.node, y.node}, span);
}

NodeId lower_select(Builder& build, const std::string& what, Operand condition, Operand x,
                    Operand y, dsl::Span span) {
    if (condition.node == kNoNode || x.node == kNoNode || y.node == kNoNode) return kNoNode;
    const Type type = build.type(condition.node);
    if (type != Type::boolean) {
        build.report().error(condition.span, what + " must be bool, but this is " + a_type(type),
                             "write (... != 0)");
        return kNoNode;
    }
    if (build.type(x.node) == Type::boolean && build.type(y.node) == Type::boolean)
        return build.apply(Op::bselect, {condition.node, x.node, y.node}, span);
    const bool real = promote(build, x, y);
    return build.apply(real ? Op::fselect : Op::iselect, {condition.node, x.node, y.node}, span);
}

// An integer to a known negative power is a real number, as in Python.
NodeId lower_power(Builder& build, Operand x, Operand y, dsl::Span span) {
    if (x.node == kNoNode || y.node == kNoNode) return kNoNode;
    const auto exponent = build.constant(y.node);
    const bool integers = build.type(x.node) != Type::real && build.type(y.node) != Type::real;
    const bool negative = exponent && exponent->integer < 0;
    if (integers && !negative) {
        const Op top = build.graph()[y.node].op;
        if (!exponent && (top == Op::ineg || top == Op::isub))
            build.report().warning(span,
                                   "a power of integers is an integer: 0 for negative exponents",
                                   "write one of them as a real number, such as 2.0");
        return build.apply(
            Op::ipow, {build.to_integer(x.node, x.span), build.to_integer(y.node, y.span)}, span);
    }
    return build.apply(Op::pow, {build.to_real(x.node, x.span), build.to_real(y.node, y.span)},
                       span);
}

} // namespace flexc::front
