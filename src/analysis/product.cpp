#include "analysis/product.h"

#include <algorithm>
#include <iterator>

namespace flexc::analysis {

using ir::NodeId;
using ir::Op;

std::optional<Product> multiply(const Product& x, const Product& y) {
    Product result;
    if (__builtin_mul_overflow(x.constant, y.constant, &result.constant) ||
        result.constant == INT64_MIN || x.factors.size() + y.factors.size() > kMaxFactors)
        return {};
    std::ranges::merge(x.factors, y.factors, std::back_inserter(result.factors));
    return result;
}

std::optional<Product> quotient(const Product& x, const Product& y) {
    if (y.constant == 0 || x.constant % y.constant != 0 ||
        !std::ranges::includes(x.factors, y.factors))
        return {};
    Product result{x.constant / y.constant, {}};
    std::ranges::set_difference(x.factors, y.factors, std::back_inserter(result.factors));
    return result;
}

Product negative(Product x) {
    x.constant = -x.constant;
    return x;
}

Product product_of(const ir::Graph& graph, NodeId id, int depth) {
    const ir::Node& node = graph[id];
    if (node.op == Op::const_int && node.integer != INT64_MIN) return {node.integer, {}};
    if (depth == 0) return {1, {id}};
    const auto operand = [&](std::size_t i) {
        return product_of(graph, node.operands[i], depth - 1);
    };
    if (node.op == Op::ineg) return negative(operand(0));
    if (node.op == Op::imul)
        if (auto all = multiply(operand(0), operand(1))) return *std::move(all);
    return {1, {id}};
}

} // namespace flexc::analysis
