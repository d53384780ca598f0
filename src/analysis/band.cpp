#include "analysis/band.h"

#include <algorithm>
#include <map>
#include <optional>

#include "analysis/dependence.h"

namespace flexc::analysis {

using ir::NodeId;
using ir::Op;

namespace {

// Masks with more conjuncts than this have other problems.
constexpr std::size_t kMaxConjuncts = 256;
constexpr int kMaxDepth = 64;
// Nodes looked at: shared expressions are walked once for each use.
constexpr int kMaxWork = 20000;
constexpr std::int64_t kMaxCoefficient = std::int64_t{1} << 31;

// q * q_idx + kv * kv_idx + constant + the sum of coefficient * node, whose nodes use neither q nor
// kv nor score.
struct Affine {
    std::int64_t q = 0, kv = 0, constant = 0;
    std::map<NodeId, std::int64_t> others;

    bool is_plain() const { return q == 0 && kv == 0 && others.empty(); }
};

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

class Finder {
  public:
    explicit Finder(ir::Graph& graph) : graph_(graph), dependence_(dependences(graph)) {}

    Band find(NodeId mask, int depth) {
        Band band;
        band.exact = true;
        std::vector<NodeId> conjuncts;
        collect(mask, conjuncts);
        for (NodeId conjunct : conjuncts)
            if (!use(conjunct, band, depth)) band.exact = false;
        tidy(band.low);
        tidy(band.high);
        return band;
    }

  private:
    static constexpr std::uint8_t kInner = Dependence::q | Dependence::kv | Dependence::score;

    void collect(NodeId mask, std::vector<NodeId>& conjuncts) const {
        std::vector<NodeId> pending = {mask};
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
        // What was left out keeps the band from being exact.
        conjuncts.insert(conjuncts.end(), pending.begin(), pending.end());
    }

    static void tidy(std::vector<NodeId>& bounds) {
        std::ranges::sort(bounds);
        bounds.erase(std::ranges::unique(bounds).begin(), bounds.end());
    }

    // Whether the conjunct says no more than the bounds that it adds.
    bool use(NodeId conjunct, Band& band, int depth) {
        if (--work_ < 0) return false;
        const ir::Node node = graph_[conjunct];
        switch (node.op) {
        case Op::const_bool: return node.integer != 0;
        case Op::ilt: return compare(node.operands[0], node.operands[1], 1, band, depth);
        case Op::ile: return compare(node.operands[0], node.operands[1], 0, band, depth);
        case Op::ieq: {
            const bool low = compare(node.operands[0], node.operands[1], 0, band, depth);
            return compare(node.operands[1], node.operands[0], 0, band, depth) && low;
        }
        case Op::bor: return depth < kMaxDepth && either(node, band, depth);
        default: return false;
        }
    }

    // The union of two bands that are open on the same side.
    bool either(const ir::Node& node, Band& band, int depth) {
        const Band x = find(node.operands[0], depth + 1), y = find(node.operands[1], depth + 1);
        auto join = [&](const std::vector<NodeId>& of_x, const std::vector<NodeId>& of_y,
                        std::vector<NodeId>& bounds, Op inner, Op outer) {
            if (of_x.empty() || of_y.empty()) return false;
            bounds.push_back(make(outer, {fold(inner, of_x), fold(inner, of_y)}));
            return true;
        };
        const bool high = join(x.high, y.high, band.high, Op::imin, Op::imax);
        const bool low = join(x.low, y.low, band.low, Op::imax, Op::imin);
        const bool one_sided =
            (high && x.low.empty() && y.low.empty()) || (low && x.high.empty() && y.high.empty());
        return x.exact && y.exact && one_sided;
    }

    // left + gap <= right.
    bool compare(NodeId left, NodeId right, std::int64_t gap, Band& band, int depth) {
        if (depth >= kMaxDepth || --work_ < 0) return false;
        const ir::Node smaller = graph_[left], larger = graph_[right];
        auto both = [&](NodeId x, NodeId y, NodeId z, NodeId w) {
            const bool first = compare(x, y, gap, band, depth + 1);
            return compare(z, w, gap, band, depth + 1) && first;
        };
        if (smaller.op == Op::imax && uses_inner(left))
            return both(smaller.operands[0], right, smaller.operands[1], right);
        if (smaller.op == Op::iabs && uses_inner(left))
            return both(smaller.operands[0], right, make(Op::ineg, {smaller.operands[0]}), right);
        if (larger.op == Op::imin && uses_inner(right))
            return both(left, larger.operands[0], left, larger.operands[1]);
        return linear(left, right, gap, band);
    }

    // left - right + gap <= 0 as a bound on kv - q.
    bool linear(NodeId left, NodeId right, std::int64_t gap, Band& band) {
        const auto x = affine(left, 0), y = affine(right, 0);
        if (!x || !y) return false;
        Affine sum = *x;
        if (!add_scaled(sum, *y, -1) || !add_scaled(sum.constant, gap, 1)) return false;
        if (sum.q == 0 || sum.kv != -sum.q) return false;
        const std::int64_t factor = std::abs(sum.kv);
        // kv > 0: factor * (kv - q) <= -rest.  kv < 0: factor * (kv - q) >= rest.
        const bool is_high = sum.kv > 0;
        NodeId bound = value(sum, is_high ? -1 : 1);
        if (factor != 1) {
            const NodeId divisor = graph_.integer(factor);
            if (is_high)
                bound = make(Op::ifloordiv, {bound, divisor});
            else // rounded up
                bound = make(Op::ineg, {make(Op::ifloordiv, {value(sum, -1), divisor})});
        }
        (is_high ? band.high : band.low).push_back(bound);
        return true;
    }

    bool uses_inner(NodeId id) const { return (dependence_[id].bits & kInner) != 0; }
    std::optional<Affine> affine(NodeId id, int depth) {
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

    // sign * (what is left when q and kv are taken away).
    NodeId value(const Affine& rest, std::int64_t sign) {
        NodeId result = ir::kNoNode;
        for (auto [node, coefficient] : rest.others) {
            if (coefficient == 0) continue;
            const std::int64_t factor = coefficient * sign;
            const NodeId term = std::abs(factor) == 1
                                    ? node
                                    : make(Op::imul, {node, graph_.integer(std::abs(factor))});
            if (result == ir::kNoNode)
                result = factor < 0 ? make(Op::ineg, {term}) : term;
            else
                result = make(factor < 0 ? Op::isub : Op::iadd, {result, term});
        }
        const NodeId constant = graph_.integer(rest.constant * sign);
        if (result == ir::kNoNode) return constant;
        return rest.constant == 0 ? result : make(Op::iadd, {result, constant});
    }

    NodeId fold(Op op, const std::vector<NodeId>& bounds) {
        NodeId result = bounds[0];
        for (std::size_t i = 1; i < bounds.size(); ++i)
            result = make(op, {result, bounds[i]});
        return result;
    }

    NodeId make(Op op, std::vector<NodeId> operands) {
        const NodeId id = graph_.apply(op, std::move(operands));
        while (dependence_.size() < graph_.size()) {
            Dependence dependence;
            for (NodeId operand : graph_[static_cast<NodeId>(dependence_.size())].operands)
                dependence = dependence | dependence_[operand];
            dependence_.push_back(dependence);
        }
        return id;
    }

    ir::Graph& graph_;
    std::vector<Dependence> dependence_;
    int work_ = kMaxWork;
};

} // namespace

Band band_of(ir::Graph& graph, NodeId mask) {
    Band band = Finder(graph).find(mask, 0);
    if (!band.found()) band.exact = false;
    return band;
}

} // namespace flexc::analysis
