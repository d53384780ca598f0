#include "analysis/band.h"

#include <algorithm>

#include "analysis/comparison.h"

namespace flexc::analysis {

using ir::NodeId;
using ir::Op;

namespace {

class Finder {
  public:
    explicit Finder(ir::Graph& graph) : comparisons_(graph) {}

    Band find(NodeId mask, int depth) {
        Band band;
        band.exact = true;
        for (NodeId conjunct : comparisons_.conjuncts_of(mask))
            if (use(conjunct, band, depth))
                band.said.push_back(conjunct);
            else
                band.exact = false;
        tidy(band.low);
        tidy(band.high);
        return band;
    }

  private:
    static void tidy(std::vector<NodeId>& bounds) {
        std::ranges::sort(bounds);
        bounds.erase(std::ranges::unique(bounds).begin(), bounds.end());
    }

    // Adds the conjunct's bounds to the band. Returns whether these say all that the conjunct does.
    bool use(NodeId conjunct, Band& band, int depth) {
        if (!comparisons_.may_go_on(depth)) return false;
        const ir::Node node = comparisons_.node(conjunct);
        switch (node.op) {
        case Op::const_bool: return node.integer != 0;
        case Op::ilt: return compare(node.operands[0], node.operands[1], 1, band, depth);
        case Op::ile: return compare(node.operands[0], node.operands[1], 0, band, depth);
        case Op::ieq: {
            const bool low = compare(node.operands[0], node.operands[1], 0, band, depth);
            return compare(node.operands[1], node.operands[0], 0, band, depth) && low;
        }
        case Op::bor: return either(node, band, depth);
        default: return false;
        }
    }

    // Adds the union of two bands that are open on the same side.
    bool either(const ir::Node& node, Band& band, int depth) {
        const Band x = find(node.operands[0], depth + 1), y = find(node.operands[1], depth + 1);
        auto join = [&](const std::vector<NodeId>& of_x, const std::vector<NodeId>& of_y,
                        std::vector<NodeId>& bounds, Op inner, Op outer) {
            if (of_x.empty() || of_y.empty()) return false;
            bounds.push_back(comparisons_.make(
                outer, {comparisons_.fold(inner, of_x), comparisons_.fold(inner, of_y)}));
            return true;
        };
        const bool high = join(x.high, y.high, band.high, Op::imin, Op::imax);
        const bool low = join(x.low, y.low, band.low, Op::imax, Op::imin);
        const bool one_sided =
            (high && x.low.empty() && y.low.empty()) || (low && x.high.empty() && y.high.empty());
        return x.exact && y.exact && one_sided;
    }

    // Adds left + gap <= right if it bounds kv - q.
    bool compare(NodeId left, NodeId right, std::int64_t gap, Band& band, int depth) {
        return comparisons_.compare(left, right, gap, depth, [&](const AffineForm& form) {
            if (form.q == 0 || form.kv != -form.q) return false;
            (form.kv > 0 ? band.high : band.low).push_back(comparisons_.bound(form, form.kv));
            return true;
        });
    }

    Comparisons comparisons_;
};

} // namespace

Band band_of(ir::Graph& graph, NodeId mask) {
    Band band = Finder(graph).find(mask, 0);
    if (!band.found()) band.exact = false;
    return band;
}

} // namespace flexc::analysis
