// A mask taken apart into comparisons of affine forms, and nodes built from what is left of these:
// for those who look for the bounds that it puts on q and kv.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/affine.h"
#include "analysis/dependence.h"
#include "ir/graph.h"

namespace flexc::analysis {

// Does so much work and no more, whatever the mask.
class Comparisons {
  public:
    explicit Comparisons(ir::Graph& graph) : graph_(graph) { extend(); }

    // Operands of `and`, as far as there are not too many.
    std::vector<ir::NodeId> conjuncts_of(ir::NodeId mask) const;

    // left + gap <= right as a conjunction of comparisons without min, max and abs:
    // use(difference), which is <= 0, for each; no term of its rest uses q, kv or score. False
    // where one is not affine or use() says so.
    template <typename Use>
    bool compare(ir::NodeId left, ir::NodeId right, std::int64_t gap, int depth, Use use) {
        if (!may_go_on(depth)) return false;
        // Copies: what is built may move the graph's nodes.
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

    // The bound that factor * x + rest <= 0 puts on x, above for a positive factor, else below;
    // `rest` is `form` without q and kv.
    ir::NodeId bound(const AffineForm& form, std::int64_t factor);
    ir::NodeId fold(ir::Op op, const std::vector<ir::NodeId>& nodes);
    ir::NodeId make(ir::Op op, std::vector<ir::NodeId> operands);

    // Of a conjunct or a comparison at this depth.
    bool may_go_on(int depth);
    const ir::Node& node(ir::NodeId id) const { return graph_[id]; }

  private:
    bool changes_in_head(ir::NodeId id) const { return (dependence_[id].bits & kInsideHead) != 0; }
    std::optional<AffineForm> difference(ir::NodeId left, ir::NodeId right, std::int64_t gap) const;
    // sign * (what is left when q and kv are taken away).
    ir::NodeId value(const AffineForm& form, std::int64_t sign);
    void extend();

    ir::Graph& graph_;
    std::vector<Dependence> dependence_;
    std::vector<AffineForm> forms_;
    int work_ = 20000; // shared expressions are walked once for each use
};

} // namespace flexc::analysis
