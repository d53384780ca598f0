#include <array>

#include "front/lower.h"
#include "front/operators.h"

namespace flexc::front {

using dsl::Expr;
using ir::kNoNode;
using ir::NodeId;
using ir::Type;

// buf[i, j] and buf[i][j] are the same; the read is made when the last index is there.
Value Lowering::lower_index(const Expr& expr) {
    const Expr& base_expr = expr_of(expr.operands[0]);
    Value base;
    if (base_expr.kind == dsl::ExprKind::name) {
        std::optional<Value> found = find_value(base_expr);
        if (!found) {
            if (!names_function(base_expr)) unknown_name(base_expr, true);
            return {};
        }
        base = std::move(*found);
    } else {
        base = lower(expr.operands[0]);
    }
    if (base.function != nullptr) {
        number_of(base, base_expr.span);
        return {};
    }
    if (!base.is_buffer()) {
        if (base.node != kNoNode)
            report_.error(
                base_expr.span,
                "this is " + a_type(build().type(base.node)) + ", and only buffers have indices",
                base_expr.kind == dsl::ExprKind::index ? "the buffer is fully indexed already"
                                                       : "remove the brackets");
        return {};
    }
    const ir::Buffer& buffer = program_.buffers[base.buffer];
    const std::size_t rank = buffer.dims.size();
    const std::size_t total = base.indices.size() + expr.operands.size() - 1;
    if (total > rank) {
        report_.error(expr.span,
                      "'" + buffer.name + "' has " + std::to_string(rank) +
                          (rank == 1 ? " dimension, but " : " dimensions, but ") +
                          std::to_string(total) +
                          (total == 1 ? " index is given" : " indices are given"),
                      rank == 0 ? "write " + buffer.name + " alone" : "");
        return {};
    }
    bool complete = true;
    for (std::size_t i = 1; i < expr.operands.size(); ++i) {
        const NodeId index = lower_one_index(expr.operands[i], base);
        complete = complete && index != kNoNode;
        base.indices.push_back(index);
    }
    if (!complete) return {};
    if (base.indices.size() < rank) return base;
    return value_of(read(base, expr.span));
}

NodeId Lowering::lower_one_index(dsl::ExprId id, const Value& base) {
    const Operand index = number(id);
    if (index.node == kNoNode) return kNoNode;
    if (build().type(index.node) == Type::real) {
        report_.error(index.span, "an index must be an integer, but this is f32",
                      "write int(...) around it, or // for a division that stays an integer");
        return kNoNode;
    }
    const NodeId node = build().to_integer(index.node, index.span);
    const auto known = build().constant(node);
    if (!known) return node;
    const ir::Buffer& buffer = program_.buffers[base.buffer];
    const ir::Dim dim = buffer.dims[base.indices.size()];
    if (known->integer < 0)
        report_.warning(
            index.span, "a negative index is outside '" + buffer.name + "' and reads 0",
            "indices do not count from the end as in Python: write KV_LEN - 1 for the last");
    else if (dim.is_constant() && known->integer >= dim.constant)
        report_.warning(index.span, "index " + std::to_string(known->integer) + " is outside '" +
                                        buffer.name + "', whose dimension here is " +
                                        std::to_string(dim.constant) + ", and reads 0");
    return node;
}

// slopes[h]: the names that usually index such dimensions.
std::string Lowering::index_example(const Value& value) const {
    constexpr std::array<std::string_view, ir::kStandardSizes> kUsual = {
        "b", "h", "h_kv", "q_idx", "kv_idx", "...", "..."};
    const ir::Buffer& buffer = program_.buffers[value.buffer];
    std::string text = buffer.name + "[";
    for (std::size_t i = 0; i < buffer.dims.size(); ++i) {
        if (i > 0) text += ", ";
        const ir::Dim dim = buffer.dims[i];
        text += !dim.is_constant() && dim.size < kUsual.size() ? kUsual[dim.size] : "...";
    }
    return text + "]";
}

} // namespace flexc::front
