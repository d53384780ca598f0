#include "front/builtins.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "front/operators.h"

namespace flexc::front {

using dsl::Operator;
using ir::NodeId;
using ir::Op;
using ir::Type;

namespace {

using Arguments = std::span<Operand>;

NodeId real_of(Builder& build, const Operand& operand) {
    return build.to_real(operand.node, operand.span);
}

// A function of f32 that returns f32.
template <Op op> NodeId real_function(Builder& build, Arguments arguments, dsl::Span span) {
    std::vector<NodeId> reals;
    for (const Operand& operand : arguments)
        reals.push_back(real_of(build, operand));
    return build.apply(op, std::move(reals), span);
}

// The integer operator if the operand is an integer, else the real one.
template <Op integer, Op real> NodeId either(Builder& build, Arguments arguments, dsl::Span span) {
    const Operand x = arguments[0];
    if (build.type(x.node) == Type::real) return build.apply(real, {x.node}, span);
    return build.apply(integer, {build.to_integer(x.node, x.span)}, span);
}

template <Op op> NodeId rounding(Builder& build, Arguments arguments, dsl::Span span) {
    const Operand x = arguments[0];
    if (build.type(x.node) == Type::real) return build.apply(op, {x.node}, span);
    return build.to_integer(x.node, span);
}

template <Op integer, Op real> NodeId extreme(Builder& build, Arguments arguments, dsl::Span span) {
    Operand result = arguments[0];
    for (Operand next : arguments.subspan(1)) {
        if (result.node == ir::kNoNode) break;
        const bool is_real = promote(build, result, next);
        result.node = build.apply(is_real ? real : integer, {result.node, next.node}, span);
    }
    return result.node;
}

// A missing bound is infinite, so that the derivative at the other one is that of clamp.
NodeId clamp(Builder& build, Arguments arguments, dsl::Span span) {
    const Operand x = arguments[0], low = arguments[1], high = arguments[2];
    if (!low.given && !high.given) {
        build.report().error(span, "clamp needs a bound", "write clamp(x, lo, hi)");
        return ir::kNoNode;
    }
    const auto is_real = [&](const Operand& operand) {
        return operand.given && build.type(operand.node) == Type::real;
    };
    if (is_real(x) || is_real(low) || is_real(high)) {
        constexpr double kInfinity = std::numeric_limits<double>::infinity();
        const NodeId lowest = low.given ? real_of(build, low) : build.real(-kInfinity, span);
        const NodeId highest = high.given ? real_of(build, high) : build.real(kInfinity, span);
        return build.apply(Op::fclamp, {real_of(build, x), lowest, highest}, span);
    }
    NodeId result = build.to_integer(x.node, x.span);
    if (low.given)
        result = build.apply(Op::imax, {result, build.to_integer(low.node, low.span)}, span);
    if (high.given)
        result = build.apply(Op::imin, {result, build.to_integer(high.node, high.span)}, span);
    return result;
}

NodeId where(Builder& build, Arguments arguments, dsl::Span span) {
    return lower_select(build, "the condition of 'where'", arguments[0], arguments[1], arguments[2],
                        span);
}

NodeId to_float(Builder& build, Arguments arguments, dsl::Span span) {
    return build.to_real(arguments[0].node, span);
}

NodeId to_int(Builder& build, Arguments arguments, dsl::Span span) {
    const Operand x = arguments[0];
    if (build.type(x.node) == Type::real) return build.apply(Op::real_to_int, {x.node}, span);
    return build.to_integer(x.node, span);
}

NodeId to_bool(Builder& build, Arguments arguments, dsl::Span span) {
    const Operand x = arguments[0];
    switch (build.type(x.node)) {
    case Type::boolean: return x.node;
    case Type::integer: return build.apply(Op::ine, {x.node, build.integer(0, span)}, span);
    default: return build.apply(Op::fne, {x.node, build.real(0, span)}, span);
    }
}

NodeId power(Builder& build, Arguments arguments, dsl::Span span) {
    return lower_power(build, arguments[0], arguments[1], span);
}

NodeId silu(Builder& build, Arguments arguments, dsl::Span span) {
    const NodeId x = real_of(build, arguments[0]);
    return build.apply(Op::fmul, {x, build.apply(Op::sigmoid, {x}, span)}, span);
}

// Written so that NaN stays NaN and the derivative at 0 is 0.
NodeId relu(Builder& build, Arguments arguments, dsl::Span span) {
    const Operand x = arguments[0];
    if (build.type(x.node) == Type::real) {
        const NodeId zero = build.real(0, span);
        return build.apply(Op::fselect, {build.apply(Op::fle, {x.node, zero}, span), zero, x.node},
                           span);
    }
    return build.apply(Op::imax, {build.to_integer(x.node, x.span), build.integer(0, span)}, span);
}

// x * (1 + erf(x / sqrt(2))) / 2
NodeId gelu(Builder& build, Arguments arguments, dsl::Span span) {
    constexpr double kRootHalf = 0.70710678118654752;
    const NodeId x = real_of(build, arguments[0]);
    const NodeId scaled = build.apply(Op::fmul, {x, build.real(kRootHalf, span)}, span);
    const NodeId sum =
        build.apply(Op::fadd, {build.real(1, span), build.apply(Op::erf, {scaled}, span)}, span);
    const NodeId half = build.apply(Op::fmul, {build.real(0.5, span), x}, span);
    return build.apply(Op::fmul, {half, sum}, span);
}

NodeId is_nan(Builder& build, Arguments arguments, dsl::Span span) {
    const NodeId x = real_of(build, arguments[0]);
    return build.apply(Op::fne, {x, x}, span);
}

NodeId is_inf(Builder& build, Arguments arguments, dsl::Span span) {
    const NodeId size = build.apply(Op::fabs, {real_of(build, arguments[0])}, span);
    return build.apply(Op::feq, {size, build.real(std::numeric_limits<double>::infinity(), span)},
                       span);
}

template <Operator op> NodeId logical(Builder& build, Arguments arguments, dsl::Span span) {
    for (Operand& x : arguments)
        if (build.type(x.node) != Type::boolean) x.node = to_bool(build, Arguments(&x, 1), x.span);
    if constexpr (op == Operator::logical_not)
        return lower_unary(build, op, arguments[0], span);
    else
        return lower_binary(build, op, arguments[0], arguments[1], span);
}

// All builtins other than operators that take f32 alone and return one.
constexpr auto kBuiltins = std::to_array<Builtin>({
    {"where", "condition x y", 3, 3, where},
    {"min", "x y", 2, kAnyNumber, extreme<Op::imin, Op::fmin>},
    {"max", "x y", 2, kAnyNumber, extreme<Op::imax, Op::fmax>},
    {"minimum", "x y", 2, 2, extreme<Op::imin, Op::fmin>},
    {"maximum", "x y", 2, 2, extreme<Op::imax, Op::fmax>},
    {"clamp", "x min max", 1, 3, clamp},
    {"abs", "x", 1, 1, either<Op::iabs, Op::fabs>},
    {"sign", "x", 1, 1, either<Op::isign, Op::fsign>},
    {"floor", "x", 1, 1, rounding<Op::ffloor>},
    {"ceil", "x", 1, 1, rounding<Op::fceil>},
    {"round", "x", 1, 1, rounding<Op::fround>},
    {"trunc", "x", 1, 1, rounding<Op::ftrunc>},
    {"float", "x", 1, 1, to_float},
    {"int", "x", 1, 1, to_int},
    {"bool", "x", 1, 1, to_bool},
    {"pow", "x exponent", 2, 2, power},
    {"fma", "x y z", 3, 3, real_function<Op::fma>},
    {"relu", "x", 1, 1, relu},
    {"silu", "x", 1, 1, silu},
    {"gelu", "x", 1, 1, gelu},
    {"isnan", "x", 1, 1, is_nan},
    {"isinf", "x", 1, 1, is_inf},
    {"logical_and", "x y", 2, 2, logical<Operator::logical_and>},
    {"logical_or", "x y", 2, 2, logical<Operator::logical_or>},
    {"logical_not", "x", 1, 1, logical<Operator::logical_not>},
});

// An operator of f32 alone is written by its name. Where that starts with f, it has a sign or is a
// function of integers too, and is among the others if it is a function; so is pow.
constexpr bool is_function(std::string_view name, std::string_view signature) {
    const std::string_view operands = signature.substr(0, signature.find('>'));
    return signature.ends_with(">f") && operands.find_first_not_of('f') == operands.npos &&
           !name.starts_with('f') &&
           std::ranges::find(kBuiltins, name, &Builtin::name) == kBuiltins.end();
}

std::vector<Builtin> all_builtins() {
    std::vector<Builtin> all(kBuiltins.begin(), kBuiltins.end());
    const auto add = [&](std::string_view name, std::string_view signature, auto lower) {
        const std::size_t arity = signature.find('>');
        const std::string_view parameters = std::string_view("x y z").substr(0, 2 * arity - 1);
        if (is_function(name, signature)) all.push_back({name, parameters, arity, arity, lower});
    };
#define FLEXC_OP(name, signature, derivative, reference, cuda, llvm)                               \
    add(#name, signature, real_function<Op::name>);
#include "ir/ops.def"
    return all;
}

struct Advice {
    std::string_view name;
    std::string_view text;
};

constexpr auto kAdvice = std::to_array<Advice>({
    {"square", "write x ** 2"},
    {"reciprocal", "write 1 / x"},
    {"neg", "write -x"},
    {"add", "write x + y"},
    {"sub", "write x - y"},
    {"mul", "write x * y"},
    {"div", "write x / y"},
    {"remainder", "write x % y"},
    {"fmod", "write x % y, whose sign is that of y"},
    {"floor_divide", "write x // y"},
    {"eq", "write x == y"},
    {"ne", "write x != y"},
    {"lt", "write x < y"},
    {"le", "write x <= y"},
    {"gt", "write x > y"},
    {"ge", "write x >= y"},
    {"logical_xor", "write bool(x) != bool(y)"},
    {"bitwise_and", "write x & y"},
    {"bitwise_or", "write x | y"},
    {"bitwise_not", "write ~x"},
    {"absolute", "write abs(x)"},
    {"clip", "write clamp(x, lo, hi)"},
    {"sinh", "write (exp(x) - exp(-x)) / 2"},
    {"cosh", "write (exp(x) + exp(-x)) / 2"},
    {"log10", "write log(x) / log(10)"},
    {"leaky_relu", "write where(x > 0, x, 0.01 * x)"},
    {"elu", "write where(x > 0, x, expm1(x))"},
    {"tensor", "write the number itself"},
    {"full_like", "write the number itself"},
    {"zeros_like", "write 0.0"},
    {"ones_like", "write 1.0"},
    {"sum", "write sum(i in 0..4: x[i]), with the term in it"},
    {"dot", "write sum(i in 0..4: x[i] * y[i]), or R for 4 where a buffer has a dim R"},
    {"vdot", "write sum(i in 0..4: x[i] * y[i]), or R for 4 where a buffer has a dim R"},
    {"inner", "write sum(i in 0..4: x[i] * y[i]), or R for 4 where a buffer has a dim R"},
    {"matmul", "write sum(i in 0..4: x[i] * y[i]), or R for 4 where a buffer has a dim R"},
    {"einsum", "write sum(i in 0..4: x[i] * y[i]), or R for 4 where a buffer has a dim R"},
    {"mean", "write sum(i in 0..4: x[i]) / 4, with the term in it"},
    {"finfo", "write -inf"},
    {"range", "loops are not supported: write the terms out"},
    {"len", "sizes have names: B H H_KV Q_LEN KV_LEN D DV, and those in a buffer's dims"},
});

} // namespace

std::span<const Builtin> builtins() {
    static const std::vector<Builtin> kAll = all_builtins();
    return kAll;
}

const Builtin* find_builtin(std::string_view name) {
    const auto found = std::ranges::find(builtins(), name, &Builtin::name);
    return found == builtins().end() ? nullptr : &*found;
}

std::string_view builtin_advice(std::string_view name) {
    const auto* found = std::find_if(kAdvice.begin(), kAdvice.end(),
                                     [&](const Advice& row) { return row.name == name; });
    return found == kAdvice.end() ? std::string_view() : found->text;
}

} // namespace flexc::front
