#include "analysis/affine.h"

#include <cstdlib>

namespace flexc::analysis {

using ir::NodeId;
using ir::Op;

namespace {

// Masks with more conjuncts than this have other problems.
constexpr std::size_t kMaxConjuncts = 256;
constexpr int kMaxDepth = 64;
constexpr std::int64_t kMaxCoefficient = std::int64_t{1} << 31;
constexpr std::uint8_t kInner = Dependence::q | Dependence::kv | Dependence::score;

bool add_scaled(std::int64_t& target, std::int64_t value, std::int64_t factor) {
    std::int64_t product = 0;
    return !__builtin_mul_overflow(value, factor, &product) &&
           !__builtin_add_overflow(target, product, &target) && target >= -kMaxCoefficient &&
           target <= kMaxCoefficient;
}

bool add_scaled(Affine& target, const Affine& more, std::int64_t factor) {
    if (!add_scaled(target.q, more.q, factor) || !add_scaled(target.kv, more.kv, factor) ||
        !add_scaled(target.constant, more.constant, factor))
        return false;
    for (auto [node, coefficient] : more.others)
        if (!add_scaled(target.others[node], coefficient, factor)) return false;
    return true;
}

} // namespace

std::vector<NodeId> AffineForms::conjuncts_of(NodeId mask) const {
    std::vector<NodeId> conjuncts, pending = {mask};
    std::vector<bool> seen(dependence_.size(), false);
    while (!pending.empty() && conjuncts.size() < kMaxConjuncts) {
        const NodeId id = pending.back();
        pending.pop_back();
        if (seen[id]) continue;
        seen[id] = true;
        const ir::Node& node = graph_[id];
        if (node.op == Op::band)
            pending.insert(pending.end(), node.operands.rbegin(), node.operands.rend());
        else
            conjuncts.push_back(id);
    }
    // What was left out is of no form that anyone knows.
    conjuncts.insert(conjuncts.end(), pending.begin(), pending.end());
    return conjuncts;
}

bool AffineForms::may_go_on(int depth) { return depth < kMaxDepth && --work_ >= 0; }

bool AffineForms::uses_inner(NodeId id) const { return (dependence_[id].bits & kInner) != 0; }

std::optional<Affine> AffineForms::difference(NodeId left, NodeId right, std::int64_t gap) {
    const auto x = affine(left, 0), y = affine(right, 0);
    if (!x || !y) return {};
    Affine sum = *x;
    if (!add_scaled(sum, *y, -1) || !add_scaled(sum.constant, gap, 1)) return {};
    return sum;
}

NodeId AffineForms::bound(const Affine& sum, std::int64_t factor) {
    // factor > 0: factor * x <= -rest.  factor < 0: |factor| * x >= rest.
    const std::int64_t size = std::abs(factor);
    if (size == 1) return value(sum, factor > 0 ? -1 : 1);
    const NodeId divisor = graph_.integer(size);
    const NodeId down = make(Op::ifloordiv, {value(sum, -1), divisor});
    return factor > 0 ? down : make(Op::ineg, {down}); // rounded up
}

std::optional<Affine> AffineForms::affine(NodeId id, int depth) {
    if (--work_ < 0) return {};
    const ir::Node& node = graph_[id];
    Affine result;
    if (node.op == Op::const_int) {
        if (!add_scaled(result.constant, node.integer, 1)) result.others[id] = 1;
        return result;
    }
    if (node.op == Op::q_idx) return Affine{.q = 1};
    if (node.op == Op::kv_idx) return Affine{.kv = 1};
    if (depth < kMaxDepth) {
        auto part = [&](std::size_t position) {
            return affine(node.operands[position], depth + 1);
        };
        switch (node.op) {
        case Op::iadd:
        case Op::isub: {
            const auto x = part(0), y = part(1);
            if (!x || !y) return {};
            result = *x;
            if (!add_scaled(result, *y, node.op == Op::iadd ? 1 : -1)) return {};
            return result;
        }
        case Op::ineg:
        case Op::imul: {
            const auto x = part(0);
            const auto y = node.op == Op::ineg ? Affine{.constant = -1} : part(1);
            if (!x || !y) return {};
            if (!x->is_plain() && !y->is_plain()) break;
            const Affine& scaled = x->is_plain() ? *y : *x;
            const Affine& factor = x->is_plain() ? *x : *y;
            if (!add_scaled(result, scaled, factor.constant)) return {};
            return result;
        }
        default: break;
        }
    }
    if (uses_inner(id)) return {};
    result.others[id] = 1;
    return result;
}

NodeId AffineForms::value(const Affine& rest, std::int64_t sign) {
    NodeId result = ir::kNoNode;
    for (auto [node, coefficient] : rest.others) {
        if (coefficient == 0) continue;
        const std::int64_t factor = coefficient * sign;
        const NodeId term =
            std::abs(factor) == 1 ? node : make(Op::imul, {node, graph_.integer(std::abs(factor))});
        if (result == ir::kNoNode)
            result = factor < 0 ? make(Op::ineg, {term}) : term;
        else
            result = make(factor < 0 ? Op::isub : Op::iadd, {result, term});
    }
    const NodeId constant = graph_.integer(rest.constant * sign);
    if (result == ir::kNoNode) return constant;
    return rest.constant == 0 ? result : make(Op::iadd, {result, constant});
}

NodeId AffineForms::fold(Op op, const std::vector<NodeId>& nodes) {
    NodeId result = nodes[0];
    for (std::size_t i = 1; i < nodes.size(); ++i)
        result = make(op, {result, nodes[i]});
    return result;
}

NodeId AffineForms::make(Op op, std::vector<NodeId> operands) {
    const NodeId id = graph_.apply(op, std::move(operands));
    while (dependence_.size() < graph_.size()) {
        Dependence dependence;
        for (NodeId operand : graph_[static_cast<NodeId>(dependence_.size())].operands)
            dependence = dependence | dependence_[operand];
        dependence_.push_back(dependence);
    }
    return id;
}

} // namespace flexc::analysis
