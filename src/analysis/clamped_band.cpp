#include <optional>

#include "analysis/band.h"
#include "analysis/comparison.h"

namespace flexc::analysis {

using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

// One end of the range of keys that a query sees, as a nondecreasing function of the query:
// min(most, max(least, q + shift)), where each part may be missing. An end that is the same for all
// queries has no shift, and equal least and most.
struct End {
    NodeId shift = kNoNode, least = kNoNode, most = kNoNode;
    bool is_constant() const { return shift == kNoNode; }
};

// What a mask shows. A missing part is unbounded.
struct Shown {
    std::optional<End> first, last; // keys
    NodeId least_query = kNoNode, most_query = kNoNode;
};

class ClampFinder {
  public:
    explicit ClampFinder(ir::Graph& graph) : comparisons_(graph) {}

    std::optional<Shown> find(NodeId mask, int depth) {
        Shown shown;
        for (NodeId conjunct : comparisons_.conjuncts_of(mask))
            if (!use(conjunct, shown, depth)) return {};
        return shown;
    }

  private:
    bool use(NodeId conjunct, Shown& shown, int depth) {
        if (!comparisons_.may_go_on(depth)) return false;
        const ir::Node node = comparisons_.node(conjunct);
        const auto compare = [&](NodeId left, NodeId right, std::int64_t gap) {
            return comparisons_.compare(left, right, gap, depth,
                                        [&](const AffineForm& form) { return bound(form, shown); });
        };
        switch (node.op) {
        case Op::const_bool: return node.integer != 0;
        case Op::ilt: return compare(node.operands[0], node.operands[1], 1);
        case Op::ile: return compare(node.operands[0], node.operands[1], 0);
        case Op::ieq:
            return compare(node.operands[0], node.operands[1], 0) &&
                   compare(node.operands[1], node.operands[0], 0);
        case Op::bor: return either(node, shown, depth);
        default: return false;
        }
    }

    // Adds the bound form <= 0.
    bool bound(const AffineForm& form, Shown& shown) {
        if (form.kv == 0) {
            if (form.q == 0) return false;
            const NodeId node = comparisons_.bound(form, form.q);
            if (form.q > 0)
                shown.most_query = joined(Op::imin, shown.most_query, node);
            else
                shown.least_query = joined(Op::imax, shown.least_query, node);
            return true;
        }
        if (form.q != 0 && form.q != -form.kv) return false;
        const NodeId node = comparisons_.bound(form, form.kv);
        const End end = form.q == 0 ? End{.least = node, .most = node} : End{.shift = node};
        return form.kv > 0 ? meet(shown.last, end, Op::imin) : meet(shown.first, end, Op::imax);
    }

    // Adds the union of two masks that both bound only the last key, or only the first.
    bool either(const ir::Node& node, Shown& shown, int depth) {
        auto x = find(node.operands[0], depth + 1), y = find(node.operands[1], depth + 1);
        if (!x || !y) return false;
        const auto bounds_queries = [](const Shown& one) {
            return one.least_query != kNoNode || one.most_query != kNoNode;
        };
        if (bounds_queries(*x) || bounds_queries(*y)) return false;
        if (!x->first && !y->first && x->last && y->last)
            return meet(x->last, *y->last, Op::imax) && meet(shown.last, *x->last, Op::imin);
        if (!x->last && !y->last && x->first && y->first)
            return meet(x->first, *y->first, Op::imin) && meet(shown.first, *x->first, Op::imax);
        return false;
    }

    NodeId joined(Op op, NodeId x, NodeId y) {
        if (x == kNoNode || y == kNoNode) return x == kNoNode ? y : x;
        return comparisons_.make(op, {x, y});
    }
    // Combines two nodes; if one is missing (unbounded), so is the result.
    NodeId if_both(Op op, NodeId x, NodeId y) {
        return x == kNoNode || y == kNoNode ? kNoNode : comparisons_.make(op, {x, y});
    }

    // Combines two ends to the smaller (imin) or the larger (imax), if that is of the same form:
    // two ends with shifts can be combined only if neither is clamped on the other side.
    bool meet(std::optional<End>& to, const End& more, Op op) {
        if (!to) {
            to = more;
            return true;
        }
        End x = *to, y = more;
        if (x.is_constant()) std::swap(x, y);
        if (y.is_constant()) {
            // A key clamps from both sides: min(min(most, max(least, s)), key) is
            // min(min(most, key), max(min(least, key), s)), and likewise for max.
            const bool is_constant = x.is_constant();
            const bool clamps_most = op == Op::imin || is_constant;
            const bool clamps_least = op == Op::imax || is_constant;
            to = End{x.shift,
                     clamps_least ? joined(op, x.least, y.least) : if_both(op, x.least, y.least),
                     clamps_most ? joined(op, x.most, y.most) : if_both(op, x.most, y.most)};
            return true;
        }
        const auto is_clamped = [op](const End& end) {
            return (op == Op::imin ? end.least : end.most) != kNoNode;
        };
        if (is_clamped(x) || is_clamped(y)) return false;
        to = End{comparisons_.make(op, {x.shift, y.shift}), joined(op, x.least, y.least),
                 joined(op, x.most, y.most)};
        return true;
    }

    Comparisons comparisons_;
};

} // namespace

std::optional<Band> clamped_band_of(ir::Graph& graph, NodeId mask) {
    const auto shown = ClampFinder(graph).find(mask, 0);
    if (!shown) return {};
    Band band;
    band.exact = true;
    Clamps clamps{.least_query = shown->least_query, .most_query = shown->most_query};
    // Without a shift, the other side of the clamp has no effect: q + low is -inf, q + high is inf.
    if (const auto& first = shown->first) {
        clamps.first_least = first->least;
        if (!first->is_constant()) {
            band.low = {first->shift};
            clamps.first_most = first->most;
        }
    }
    if (const auto& last = shown->last) {
        clamps.last_most = last->most;
        if (!last->is_constant()) {
            band.high = {last->shift};
            clamps.last_least = last->least;
        }
    }
    band.clamps = clamps;
    return band;
}

} // namespace flexc::analysis
