// Comparisons of integers that are affine in q_idx and kv_idx, taken apart.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "analysis/dependence.h"
#include "ir/graph.h"

namespace flexc::analysis {

// q * q_idx + kv * kv_idx + constant + the sum of coefficient * node, whose nodes use neither q nor
// kv nor score.
struct Affine {
    std::int64_t q = 0, kv = 0, constant = 0;
    std::map<ir::NodeId, std::int64_t> others;

    bool is_plain() const { return q == 0 && kv == 0 && others.empty(); }
};

// Takes a mask apart into conjuncts and those into affine forms, and builds nodes from what is left
// of these. Does so much work and no more, whatever the mask.
class AffineForms {
  public:
    explicit AffineForms(ir::Graph& graph) : graph_(graph), dependence_(dependences(graph)) {}

    // Operands of `and`, as far as there are not too many.
    std::vector<ir::NodeId> conjuncts_of(ir::NodeId mask) const;

    // left + gap <= right as a conjunction of comparisons without min, max and abs:
    // use(difference), which is <= 0, for each. False where one is not affine or use() says so.
    template <typename Use>
    bool compare(ir::NodeId left, ir::NodeId right, std::int64_t gap, int depth, Use use) {
        if (!may_go_on(depth)) return false;
        // Copies: what is built may move the graph's nodes.
        const ir::Node smaller = graph_[left], larger = graph_[right];
        const auto both = [&](ir::NodeId x, ir::NodeId y, ir::NodeId z, ir::NodeId w) {
            const bool first = compare(x, y, gap, depth + 1, use);
            return compare(z, w, gap, depth + 1, use) && first;
        };
        if (smaller.op == ir::Op::imax && uses_inner(left))
            return both(smaller.operands[0], right, smaller.operands[1], right);
        if (smaller.op == ir::Op::iabs && uses_inner(left))
            return both(smaller.operands[0], right, make(ir::Op::ineg, {smaller.operands[0]}),
                        right);
        if (larger.op == ir::Op::imin && uses_inner(right))
            return both(left, larger.operands[0], left, larger.operands[1]);
        const auto sum = difference(left, right, gap);
        return sum && use(*sum);
    }

    // The bound that factor * x + rest <= 0 puts on x, above for a positive factor, else below;
    // `rest` is `sum` without q and kv.
    ir::NodeId bound(const Affine& sum, std::int64_t factor);
    ir::NodeId fold(ir::Op op, const std::vector<ir::NodeId>& nodes);
    ir::NodeId make(ir::Op op, std::vector<ir::NodeId> operands);

    // Of a conjunct or a comparison at this depth.
    bool may_go_on(int depth);
    const ir::Node& node(ir::NodeId id) const { return graph_[id]; }

  private:
    bool uses_inner(ir::NodeId id) const;
    std::optional<Affine> difference(ir::NodeId left, ir::NodeId right, std::int64_t gap);
    std::optional<Affine> affine(ir::NodeId id, int depth);
    // sign * (what is left when q and kv are taken away).
    ir::NodeId value(const Affine& rest, std::int64_t sign);

    ir::Graph& graph_;
    std::vector<Dependence> dependence_;
    int work_ = 20000; // nodes looked at: shared expressions are walked once for each use
};

} // namespace flexc::analysis
