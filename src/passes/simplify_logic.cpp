// Rules for comparison, logic and selection. A real comparison with NaN is false, so only `==` and
// `!=` are negations of each other.
#include "passes/simplify.h"

namespace flexc::passes {

using ir::NodeId;
using ir::Op;

namespace {

using Simpler = std::optional<NodeId>;

bool is_negation(const Builder& build, NodeId x, NodeId y) {
    return (build.is(x, Op::bnot) && build.operand(x, 0) == y) ||
           (build.is(y, Op::bnot) && build.operand(y, 0) == x);
}

Simpler negate(Builder& build, NodeId x) {
    auto turned = [&](Op op, bool swapped) {
        const NodeId left = build.operand(x, 0), right = build.operand(x, 1);
        return swapped ? build.apply(op, {right, left}) : build.apply(op, {left, right});
    };
    switch (build[x].op) {
    case Op::bnot: return build.operand(x, 0);
    case Op::ilt: return turned(Op::ile, true);
    case Op::ile: return turned(Op::ilt, true);
    case Op::ieq: return turned(Op::ine, false);
    case Op::ine: return turned(Op::ieq, false);
    case Op::feq: return turned(Op::fne, false);
    case Op::fne: return turned(Op::feq, false);
    default: return {};
    }
}

Simpler combine(Builder& build, Op op, NodeId x, NodeId y) {
    const bool absorbing = op == Op::bor; // the value that decides alone
    if (build.is_boolean(x, absorbing) || build.is_boolean(y, absorbing))
        return build.boolean(absorbing);
    if (build.is_boolean(x, !absorbing)) return y;
    if (build.is_boolean(y, !absorbing) || x == y) return x;
    if (is_negation(build, x, y)) return build.boolean(absorbing);
    // (a and b) and a
    if (build.is(x, op) && (build.operand(x, 0) == y || build.operand(x, 1) == y)) return x;
    return {};
}

Simpler differ(Builder& build, NodeId x, NodeId y) {
    if (x == y) return build.boolean(false);
    if (is_negation(build, x, y)) return build.boolean(true);
    if (auto constant = build.boolean_constant(y))
        return *constant ? build.apply(Op::bnot, {x}) : x;
    return {};
}

// Compares bool_to_int(x) with a constant.
Simpler compare_flag(Builder& build, Op op, NodeId x, NodeId y) {
    const bool flag_first = build.is(x, Op::bool_to_int);
    const NodeId flag = build.operand(flag_first ? x : y, 0);
    auto value_with = [&](std::int64_t value) {
        const NodeId number = build.integer(value);
        return build.apply(op, {flag_first ? number : x, flag_first ? y : number});
    };
    return build.apply(Op::bselect, {flag, value_with(1), value_with(0)});
}

Simpler compare(Builder& build, Op op, NodeId x, NodeId y) {
    if (x == y) return build.boolean(op == Op::ile || op == Op::ieq);
    if ((build.is(x, Op::bool_to_int) && build.is_constant(y)) ||
        (build.is(y, Op::bool_to_int) && build.is_constant(x)))
        return compare_flag(build, op, x, y);
    return {};
}

Simpler select_boolean(Builder& build, NodeId condition, NodeId yes, NodeId no) {
    const auto when_true = build.boolean_constant(yes), when_false = build.boolean_constant(no);
    if (when_true && when_false) // equal arms are gone already
        return *when_true ? condition : build.apply(Op::bnot, {condition});
    if (when_true)
        return *when_true ? build.apply(Op::bor, {condition, no})
                          : build.apply(Op::band, {build.apply(Op::bnot, {condition}), no});
    if (when_false)
        return *when_false ? build.apply(Op::bor, {build.apply(Op::bnot, {condition}), yes})
                           : build.apply(Op::band, {condition, yes});
    return {};
}

Simpler select(Builder& build, Op op, NodeId condition, NodeId yes, NodeId no) {
    if (auto constant = build.boolean_constant(condition)) return *constant ? yes : no;
    if (yes == no) return yes;
    if (build.is(condition, Op::bnot))
        return build.apply(op, {build.operand(condition, 0), no, yes});
    // An arm that tests the same condition again.
    if (build.is(yes, op) && build.operand(yes, 0) == condition)
        return build.apply(op, {condition, build.operand(yes, 1), no});
    if (build.is(no, op) && build.operand(no, 0) == condition)
        return build.apply(op, {condition, yes, build.operand(no, 2)});
    return op == Op::bselect ? select_boolean(build, condition, yes, no) : Simpler();
}

} // namespace

Simpler simplify_logic(Builder& build, Op op, Operands operands) {
    switch (op) {
    case Op::bnot: return negate(build, operands[0]);
    case Op::band:
    case Op::bor: return combine(build, op, operands[0], operands[1]);
    case Op::bxor: return differ(build, operands[0], operands[1]);
    case Op::ilt:
    case Op::ile:
    case Op::ieq:
    case Op::ine: return compare(build, op, operands[0], operands[1]);
    case Op::bselect:
    case Op::iselect:
    case Op::fselect: return select(build, op, operands[0], operands[1], operands[2]);
    default: return {};
    }
}

} // namespace flexc::passes
