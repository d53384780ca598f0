#include "analysis/comparison.h"

#include <cstdlib>

namespace flexc::analysis {

using ir::NodeId;
using ir::Op;

namespace {

// Masks with more conjuncts are not analysed further.
constexpr std::size_t kMaxConjuncts = 256;
constexpr int kMaxDepth = 64;

} // namespace

std::vector<NodeId> Comparisons::conjuncts_of(NodeId mask) const {
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
    // Conjuncts beyond the limit are kept whole, so that no analysis recognizes them.
    conjuncts.insert(conjuncts.end(), pending.begin(), pending.end());
    return conjuncts;
}

bool Comparisons::may_go_on(int depth) { return depth < kMaxDepth && --work_ >= 0; }

std::optional<AffineForm> Comparisons::difference(NodeId left, NodeId right,
                                                  std::int64_t gap) const {
    const auto without_gap = sum(forms_[left], forms_[right], -1);
    if (!without_gap || without_gap->rest_uses(kInsideHead)) return {};
    return sum(*without_gap, {.constant = gap});
}

NodeId Comparisons::bound(const AffineForm& form, std::int64_t factor) {
    // factor > 0: factor * x <= -rest.  factor < 0: |factor| * x >= rest.
    const std::int64_t size = std::abs(factor);
    if (size == 1) return value(form, factor > 0 ? -1 : 1);
    const NodeId divisor = graph_.integer(size);
    const NodeId down = make(Op::ifloordiv, {value(form, -1), divisor});
    return factor > 0 ? down : make(Op::ineg, {down}); // rounded up
}

NodeId Comparisons::value(const AffineForm& form, std::int64_t sign) {
    NodeId result = ir::kNoNode;
    for (const AffineForm::Term& part : form.rest) {
        const std::int64_t factor = part.coefficient * sign, size = std::abs(factor);
        const NodeId term =
            size == 1 ? part.node : make(Op::imul, {part.node, graph_.integer(size)});
        if (result == ir::kNoNode)
            result = factor < 0 ? make(Op::ineg, {term}) : term;
        else
            result = make(factor < 0 ? Op::isub : Op::iadd, {result, term});
    }
    const NodeId constant = graph_.integer(form.constant * sign);
    if (result == ir::kNoNode) return constant;
    return form.constant == 0 ? result : make(Op::iadd, {result, constant});
}

NodeId Comparisons::fold(Op op, const std::vector<NodeId>& nodes) {
    NodeId result = nodes[0];
    for (std::size_t i = 1; i < nodes.size(); ++i)
        result = make(op, {result, nodes[i]});
    return result;
}

NodeId Comparisons::make(Op op, std::vector<NodeId> operands) {
    const NodeId id = graph_.apply(op, std::move(operands));
    extend();
    return id;
}

void Comparisons::extend() {
    extend_dependences(dependence_, graph_);
    extend_affine_forms(forms_, graph_, dependence_);
}

} // namespace flexc::analysis
