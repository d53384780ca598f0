// Whether two trees say the same, apart from where.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "dsl/ast.h"

namespace flexc::dsl {

inline bool same_expression(const Ast& x, ExprId i, const Ast& y, ExprId j) {
    if ((i == kNoExpr) != (j == kNoExpr)) return false;
    if (i == kNoExpr) return true;
    const Expr &a = x[i], &b = y[j];
    return a.kind == b.kind && a.op == b.op && a.qualified == b.qualified &&
           a.integer == b.integer &&
           std::bit_cast<std::uint64_t>(a.real) == std::bit_cast<std::uint64_t>(b.real) &&
           a.name == b.name && a.comparisons == b.comparisons && a.keywords == b.keywords &&
           std::equal(a.operands.begin(), a.operands.end(), b.operands.begin(), b.operands.end(),
                      [&](ExprId m, ExprId n) { return same_expression(x, m, y, n); });
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as functions in functions
inline bool same_item(const Ast& x, const Item& a, const Ast& y, const Item& b) {
    const auto same = [&](ExprId i, ExprId j) { return same_expression(x, i, y, j); };
    return a.kind == b.kind && a.grad == b.grad && a.bare == b.bare && a.python == b.python &&
           a.name == b.name && a.type == b.type && same(a.value, b.value) &&
           std::equal(a.dims.begin(), a.dims.end(), b.dims.begin(), b.dims.end(), same) &&
           std::equal(a.parameters.begin(), a.parameters.end(), b.parameters.begin(),
                      b.parameters.end(),
                      [&](const Parameter& p, const Parameter& q) {
                          return p.name == q.name && same(p.default_value, q.default_value);
                      }) &&
           std::equal(a.body.begin(), a.body.end(), b.body.begin(), b.body.end(),
                      [&](const Statement& s, const Statement& t) {
                          if (s.kind != t.kind || s.op != t.op || s.name != t.name) return false;
                          return s.kind == StatementKind::function
                                     ? same_item(x, x.functions[s.function], y,
                                                 y.functions[t.function])
                                     : same(s.value, t.value);
                      });
}

inline bool same_tree(const Ast& x, const Ast& y) {
    return std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(),
                      [&](const Item& a, const Item& b) { return same_item(x, a, y, b); });
}

} // namespace flexc::dsl
