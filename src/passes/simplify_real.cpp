// Rules for real arithmetic. Some are left out on purpose: x * 0, x - x, x / x and 0 / x are NaN
// for some x, and regrouping sums and products would round differently.
#include <cmath>

#include "passes/simplify.h"

namespace flexc::passes {

using ir::NodeId;
using ir::Op;

namespace {

using Simpler = std::optional<NodeId>;

// Returns 1 / value if it is exact in f32, so that x / value and x * (1 / value) round alike.
std::optional<double> exact_reciprocal(double value) {
    int exponent = 0;
    const bool power_of_two = std::fabs(std::frexp(value, &exponent)) == 0.5;
    // The value and its reciprocal must be normal in f32.
    if (!power_of_two || exponent < -124 || exponent > 126) return {};
    return 1 / value;
}

Simpler add(Builder& build, NodeId x, NodeId y) {
    if (build.is_real(y, 0)) return x;
    if (build.is(y, Op::fneg)) return build.apply(Op::fsub, {x, build.operand(y, 0)});
    if (build.is(x, Op::fneg)) return build.apply(Op::fsub, {y, build.operand(x, 0)});
    return {};
}

Simpler subtract(Builder& build, NodeId x, NodeId y) {
    if (build.is_real(y, 0)) return x;
    if (build.is_real(x, 0)) return build.apply(Op::fneg, {y});
    if (build.is(y, Op::fneg)) return build.apply(Op::fadd, {x, build.operand(y, 0)});
    return {};
}

Simpler multiply(Builder& build, NodeId x, NodeId y) {
    if (build.is_real(y, 1)) return x;
    if (build.is_real(y, -1)) return build.apply(Op::fneg, {x});
    if (build.is(x, Op::fneg)) {
        const NodeId inner = build.operand(x, 0);
        if (build.is(y, Op::fneg)) return build.apply(Op::fmul, {inner, build.operand(y, 0)});
        if (auto constant = build.real_constant(y))
            return build.apply(Op::fmul, {inner, build.real(-*constant)});
    }
    return {};
}

Simpler divide(Builder& build, NodeId x, NodeId y) {
    if (auto divisor = build.real_constant(y))
        if (auto factor = exact_reciprocal(*divisor))
            return build.apply(Op::fmul, {x, build.real(*factor)});
    if (build.is(x, Op::fneg) && build.is(y, Op::fneg))
        return build.apply(Op::fdiv, {build.operand(x, 0), build.operand(y, 0)});
    return {};
}

// Computes powers as PyTorch does: a square root for exponent 1/2, products for small integers.
Simpler power(Builder& build, NodeId x, NodeId y) {
    if (build.is_real(x, 2)) return build.apply(Op::exp2, {y});
    const auto exponent = build.real_constant(y);
    if (!exponent) return {};
    if (*exponent == 0) return build.real(1);
    if (*exponent == 1) return x;
    if (*exponent == 0.5) return build.apply(Op::sqrt, {x});
    if (*exponent == -0.5) return build.apply(Op::rsqrt, {x});
    if (*exponent == -1) return build.apply(Op::fdiv, {build.real(1), x});
    const NodeId square = build.apply(Op::fmul, {x, x});
    if (*exponent == 2) return square;
    if (*exponent == 3) return build.apply(Op::fmul, {square, x});
    // (1 / x)^2 rather than 1 / (x * x): x * x, and even more its square in the derivative, may
    // overflow or underflow.
    if (*exponent == -2) {
        const NodeId reciprocal = build.apply(Op::fdiv, {build.real(1), x});
        return build.apply(Op::fmul, {reciprocal, reciprocal});
    }
    return {};
}

Simpler fused(Builder& build, NodeId x, NodeId y, NodeId z) {
    if (build.is_real(x, 1)) return build.apply(Op::fadd, {y, z});
    if (build.is_real(y, 1)) return build.apply(Op::fadd, {x, z});
    if (build.is_real(z, 0)) return build.apply(Op::fmul, {x, y});
    return {};
}

bool is_whole(Builder& build, NodeId x) {
    switch (build[x].op) {
    case Op::ffloor:
    case Op::fceil:
    case Op::fround:
    case Op::ftrunc:
    case Op::fsign:
    case Op::ffloordiv:
    case Op::int_to_real:
    case Op::bool_to_real: return true;
    default: return false;
    }
}

Simpler unary(Builder& build, Op op, NodeId x) {
    switch (op) {
    case Op::fneg:
        if (build.is(x, Op::fneg)) return build.operand(x, 0);
        if (build.is(x, Op::fsub))
            return build.apply(Op::fsub, {build.operand(x, 1), build.operand(x, 0)});
        return {};
    case Op::fabs:
        if (build.is(x, Op::fabs) || build.is(x, Op::exp) || build.is(x, Op::exp2)) return x;
        if (build.is(x, Op::fneg)) return build.apply(Op::fabs, {build.operand(x, 0)});
        return {};
    case Op::ffloor:
    case Op::fceil:
    case Op::fround:
    case Op::ftrunc:
        if (is_whole(build, x)) return x;
        return {};
    case Op::int_to_real:
        if (build.is(x, Op::bool_to_int))
            return build.apply(Op::bool_to_real, {build.operand(x, 0)});
        return {};
    default: return {};
    }
}

} // namespace

Simpler simplify_real(Builder& build, Op op, Operands operands) {
    switch (op) {
    case Op::fadd: return add(build, operands[0], operands[1]);
    case Op::fsub: return subtract(build, operands[0], operands[1]);
    case Op::fmul: return multiply(build, operands[0], operands[1]);
    case Op::fdiv: return divide(build, operands[0], operands[1]);
    case Op::pow: return power(build, operands[0], operands[1]);
    case Op::fma: return fused(build, operands[0], operands[1], operands[2]);
    case Op::fmin:
    case Op::fmax:
        if (operands[0] == operands[1]) return operands[0];
        return {};
    default: return operands.size() == 1 ? unary(build, op, operands[0]) : Simpler();
    }
}

} // namespace flexc::passes
