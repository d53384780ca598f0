// Splits a mask into comparisons of affine forms, and builds nodes from them: used by analyses of
// the bounds that a mask puts on q and kv.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/affine.h"
#include "analysis/dependence.h"
#include "ir/graph.h"

namespace flexc::analysis {

// Does a bounded amount of work, whatever the mask.
class Comparisons {
  public:
    explicit Comparisons(ir::Graph& graph) : graph_(graph) { extend(); }

    // Returns the operands of `and`, up to a limit.
    std::vector<ir::NodeId> conjuncts_of(ir::NodeId mask) const;

    // Splits left + gap <= right into comparisons without min, max and abs, and calls
    // use(difference), which is <= 0, for each; no term of its rest uses q, kv or score. False if
    // one is not affine or use() returns false.
    template <typename Use>
    bool compare(ir::NodeId left, ir::NodeId right, std::int64_t gap, int depth, Use use) {
        if (!may_go_on(depth)) return false;
        // Copy the nodes, as building nodes reallocates the graph.
        const ir::Node smaller = graph_[left], larger = graph_[right];
        const auto both = [&](ir::NodeId x, ir::NodeId y, ir::NodeId z, ir::NodeId w) {
            const bool first = compare(x, y, gap, depth + 1, use);
            return compare(z, w, gap, depth + 1, use) && first;
        };
        if (smaller.op == ir::Op::imax && changes_in_head(left))
            return both(smaller.operands[0], right, smaller.operands[1], right);
        if (smaller.op == ir::Op::iabs && changes_in_head(left))
            return both(smaller.operands[0], right, make(ir::Op::ineg, {smaller.operands[0]}),
                        right);
        if (larger.op == ir::Op::imin && changes_in_head(right))
            return both(left, larger.operands[0], left, larger.operands[1]);
        const auto difference = this->difference(left, right, gap);
        return difference && use(*difference);
    }

    // Returns the bound that factor * x + rest <= 0 puts on x: from above if factor is positive,
    // else from below. `rest` is `form` without q and kv.
    ir::NodeId bound(const AffineForm& form, std::int64_t factor);
    ir::NodeId fold(ir::Op op, const std::vector<ir::NodeId>& nodes);
    ir::NodeId make(ir::Op op, std::vector<ir::NodeId> operands);

    // Whether to go on with a conjunct or comparison at this depth.
    bool may_go_on(int depth);
    const ir::Node& node(ir::NodeId id) const { return graph_[id]; }

  private:
    bool changes_in_head(ir::NodeId id) const { return (dependence_[id].bits & kInsideHead) != 0; }
    std::optional<AffineForm> difference(ir::NodeId left, ir::NodeId right, std::int64_t gap) const;
    // Returns sign * (form without q and kv).
    ir::NodeId value(const AffineForm& form, std::int64_t sign);
    void extend();

    ir::Graph& graph_;
    std::vector<Dependence> dependence_;
    std::vector<AffineForm> forms_;
    int work_ = 20000; // shared expressions are walked once for each use
};

} // namespace flexc::analysis
