// Integer arithmetic: exact, modulo 2^64.
#include "ir/reference.h"
#include "passes/simplify.h"

namespace flexc::passes {

using ir::NodeId;
using ir::Op;
using ir::reference::Integer;

namespace {

using Simpler = std::optional<NodeId>;

// x written as y + constant.
struct Offset {
    NodeId base;
    Integer constant;
};

Offset offset_of(const Builder& build, NodeId x) {
    if (build.is(x, Op::iadd))
        if (auto constant = build.integer_constant(build.operand(x, 1)))
            return {build.operand(x, 0), *constant};
    if (build.is(x, Op::isub))
        if (auto constant = build.integer_constant(build.operand(x, 1)))
            return {build.operand(x, 0), -Integer(*constant)};
    return {x, 0};
}

NodeId with_offset(Builder& build, NodeId base, Integer constant) {
    if (constant == 0) return base;
    if (constant < 0 && -constant > 0)
        return build.graph().apply(Op::isub, {base, build.integer((-constant).value)});
    return build.graph().apply(Op::iadd, {base, build.integer(constant.value)});
}

Simpler add(Builder& build, NodeId x, NodeId y) {
    if (auto constant = build.integer_constant(y)) {
        const Offset offset = offset_of(build, x);
        if (*constant == 0 || *constant < 0 || offset.base != x)
            return with_offset(build, offset.base, offset.constant + *constant);
        return {};
    }
    if (build.is(y, Op::ineg)) return build.apply(Op::isub, {x, build.operand(y, 0)});
    if (build.is(x, Op::ineg)) return build.apply(Op::isub, {y, build.operand(x, 0)});
    if (build.is(x, Op::isub) && build.operand(x, 1) == y) return build.operand(x, 0);
    if (build.is(y, Op::isub) && build.operand(y, 1) == x) return build.operand(y, 0);
    return {};
}

Simpler subtract(Builder& build, NodeId x, NodeId y) {
    if (x == y) return build.integer(0);
    if (build.is_integer(x, 0)) return build.apply(Op::ineg, {y});
    if (auto constant = build.integer_constant(y)) {
        const Offset offset = offset_of(build, x);
        if (*constant <= 0 || offset.base != x)
            return with_offset(build, offset.base, offset.constant - *constant);
        return {};
    }
    if (build.is(y, Op::ineg)) return build.apply(Op::iadd, {x, build.operand(y, 0)});
    if (build.is(x, Op::iadd)) {
        if (build.operand(x, 0) == y) return build.operand(x, 1);
        if (build.operand(x, 1) == y) return build.operand(x, 0);
    }
    if (build.is(y, Op::isub) && build.operand(y, 0) == x) return build.operand(y, 1);
    return {};
}

Simpler multiply(Builder& build, NodeId x, NodeId y) {
    if (build.is_integer(y, 0)) return y;
    if (build.is_integer(y, 1)) return x;
    if (build.is_integer(y, -1)) return build.apply(Op::ineg, {x});
    return {};
}

bool is_size(const Builder& build, NodeId id, std::uint32_t size) {
    return build.is(id, Op::size) && build[id].symbol == size;
}

// Whether it is the number of query heads that share keys.
bool is_group(const Builder& build, NodeId id) {
    return build.is(id, Op::ifloordiv) && is_size(build, build.operand(id, 0), ir::kH) &&
           is_size(build, build.operand(id, 1), ir::kHKv);
}

Simpler divide(Builder& build, NodeId x, NodeId y) {
    if (build.is(x, Op::h) && is_group(build, y)) return build.graph().ambient(Op::h_kv);
    if (build.is_integer(x, 0) || build.is_integer(y, 0)) return build.integer(0);
    if (build.is_integer(y, 1)) return x;
    if (build.is_integer(y, -1)) return build.apply(Op::ineg, {x});
    return {};
}

Simpler modulo(Builder& build, NodeId x, NodeId y) {
    if (build.is_integer(x, 0) || build.is_integer(y, 0) || build.is_integer(y, 1) ||
        build.is_integer(y, -1) || x == y)
        return build.integer(0);
    return {};
}

Simpler power(Builder& build, NodeId x, NodeId y) {
    if (build.is_integer(y, 0)) return build.integer(1);
    if (build.is_integer(y, 1)) return x;
    if (build.is_integer(y, 2)) return build.apply(Op::imul, {x, x});
    return {};
}

Simpler bitwise(Builder& build, Op op, NodeId x, NodeId y) {
    if (x == y) return op == Op::ixor ? build.integer(0) : x;
    if (build.is_integer(y, 0)) return op == Op::iand ? y : x;
    if (!build.is_integer(y, -1)) return {};
    if (op == Op::ixor) return build.apply(Op::inot, {x});
    return op == Op::iand ? x : y;
}

// Merges constants in min(min(x, a), b) and the like.
Simpler extreme(Builder& build, Op op, NodeId x, NodeId y) {
    if (x == y) return x;
    const auto outer = build.integer_constant(y);
    if (outer && build.is(x, op))
        if (auto inner = build.integer_constant(build.operand(x, 1)))
            return build.apply(op, {build.operand(x, 0),
                                    build.integer(op == Op::imin ? std::min(*inner, *outer)
                                                                 : std::max(*inner, *outer))});
    return {};
}

Simpler unary(Builder& build, Op op, NodeId x) {
    switch (op) {
    case Op::ineg:
        if (build.is(x, Op::ineg)) return build.operand(x, 0);
        if (build.is(x, Op::isub))
            return build.apply(Op::isub, {build.operand(x, 1), build.operand(x, 0)});
        return {};
    case Op::inot:
        if (build.is(x, Op::inot)) return build.operand(x, 0);
        return {};
    case Op::iabs:
        if (build.is(x, Op::iabs) || build.is(x, Op::bool_to_int)) return x;
        if (build.is(x, Op::ineg)) return build.apply(Op::iabs, {build.operand(x, 0)});
        if (build.is(x, Op::isub) && build.operand(x, 0) > build.operand(x, 1))
            return build.apply(Op::iabs,
                               {build.apply(Op::isub, {build.operand(x, 1), build.operand(x, 0)})});
        return {};
    case Op::isign:
        if (build.is(x, Op::isign) || build.is(x, Op::bool_to_int)) return x;
        return {};
    case Op::real_to_int:
        if (build.is(x, Op::bool_to_real))
            return build.apply(Op::bool_to_int, {build.operand(x, 0)});
        return {};
    default: return {};
    }
}

} // namespace

Simpler simplify_integer(Builder& build, Op op, Operands operands) {
    if (operands.size() == 1) return unary(build, op, operands[0]);
    const NodeId x = operands[0], y = operands[1];
    switch (op) {
    case Op::iadd: return add(build, x, y);
    case Op::isub: return subtract(build, x, y);
    case Op::imul: return multiply(build, x, y);
    case Op::ifloordiv: return divide(build, x, y);
    case Op::imod: return modulo(build, x, y);
    case Op::ipow: return power(build, x, y);
    case Op::imin:
    case Op::imax: return extreme(build, op, x, y);
    case Op::iand:
    case Op::ior:
    case Op::ixor: return bitwise(build, op, x, y);
    case Op::ishl:
    case Op::ishr:
        if (build.is_integer(y, 0)) return x;
        return {};
    default: return {};
    }
}

} // namespace flexc::passes
