#include "passes/derive.h"

#include <algorithm>

#include "passes/simplify.h"

namespace flexc::passes {

using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

// A node under construction, so that rules can be written as formulas.
struct Expr {
    Builder* build;
    NodeId id;

    Expr make(Op op, std::vector<NodeId> operands) const {
        return {build, build->apply(op, std::move(operands))};
    }
    friend Expr operator+(Expr x, Expr y) { return x.make(Op::fadd, {x.id, y.id}); }
    friend Expr operator-(Expr x, Expr y) { return x.make(Op::fsub, {x.id, y.id}); }
    friend Expr operator*(Expr x, Expr y) { return x.make(Op::fmul, {x.id, y.id}); }
    friend Expr operator/(Expr x, Expr y) { return x.make(Op::fdiv, {x.id, y.id}); }
    friend Expr operator-(Expr x) { return x.make(Op::fneg, {x.id}); }
};

// The vocabulary of the derivative column, and the column itself.
struct Rules {
    Builder& build;
    Expr zero{&build, build.real(0)};
    Expr one{&build, build.real(1)};

    Expr real(double value) { return {&build, build.real(value)}; }
    Expr unary(Op op, Expr x) { return x.make(op, {x.id}); }
    Expr binary(Op op, Expr x, Expr y) { return x.make(op, {x.id, y.id}); }

    Expr exp(Expr x) { return unary(Op::exp, x); }
    Expr log(Expr x) { return unary(Op::log, x); }
    Expr sin(Expr x) { return unary(Op::sin, x); }
    Expr cos(Expr x) { return unary(Op::cos, x); }
    Expr sigmoid(Expr x) { return unary(Op::sigmoid, x); }
    Expr floor(Expr x) { return unary(Op::ffloor, x); }
    Expr fsign(Expr x) { return unary(Op::fsign, x); }
    Expr pow(Expr x, Expr y) { return binary(Op::pow, x, y); }
    Expr flt(Expr x, Expr y) { return binary(Op::flt, x, y); }
    Expr fle(Expr x, Expr y) { return binary(Op::fle, x, y); }
    Expr feq(Expr x, Expr y) { return binary(Op::feq, x, y); }
    Expr band(Expr x, Expr y) { return binary(Op::band, x, y); }
    Expr bor(Expr x, Expr y) { return binary(Op::bor, x, y); }
    Expr fselect(Expr condition, Expr yes, Expr no) {
        return condition.make(Op::fselect, {condition.id, yes.id, no.id});
    }
    // The share of x where the smaller of x and y is wanted; all of it when either is NaN.
    Expr tie(Expr x, Expr y) {
        return fselect(feq(x, y), real(0.5), fselect(flt(y, x), zero, one));
    }

    std::vector<Expr> partials(Op op, [[maybe_unused]] Expr x, [[maybe_unused]] Expr y,
                               [[maybe_unused]] Expr z, [[maybe_unused]] Expr r) {
        switch (op) {
#define NONE                                                                                       \
    {                                                                                              \
    }
#define SELECT NONE
#define D(...) {__VA_ARGS__}
#define FLEXC_OP(name, signature, derivative, reference, cuda, llvm)                               \
    case Op::name: return derivative;
#include "ir/ops.def"
#undef NONE
#undef SELECT
#undef D
        default: return {};
        }
    }
};

class Derivation {
  public:
    Derivation(ir::Graph& graph, std::vector<NodeId> order)
        : build_(graph), order_(std::move(order)), counters_(ir::counters_of(graph)),
          partials_(graph.size()), first_new_(graph.size()) {}

    NodeId with_respect_to(NodeId leaf, NodeId root) {
        std::vector<NodeId> slope(first_new_, kNoNode);
        stops_at_terms_ = counters_[leaf] != kNoNode;
        for (NodeId id : order_) {
            slope[id] = id == leaf ? rules_.one.id : of_node(id, slope);
            if (too_large()) return kNoNode;
        }
        return slope[root];
    }

    bool too_large() const { return build_.graph().size() - first_new_ > kMaxDerivativeNodes; }

  private:
    using Slopes = std::vector<NodeId>; // one for each of the program's nodes

    NodeId of_node(NodeId id, const Slopes& slope) {
        const Op op = build_[id].op;
        if (op == Op::fselect) return of_select(id, slope);
        if (op == Op::sum) return of_sum(id, slope);
        return ir::info(op).differentiable ? of_operator(id, slope) : kNoNode;
    }

    // The slope of an operand, as far as it enters through it.
    NodeId entering(NodeId id, std::size_t position, const Slopes& slope) const {
        const NodeId operand = build_.operand(id, position);
        const bool enters_term = counters_[id] != kNoNode && counters_[operand] == kNoNode;
        return stops_at_terms_ && enters_term ? kNoNode : slope[operand];
    }

    // The leaf is either the same for all terms, or one of its values is in each. Then the slope
    // changes with the counter, and what enters terms from other sums changes with it too, though
    // in another way than the terms: the slopes of the two are multiplied outside of the sum.
    NodeId of_sum(NodeId id, const Slopes& slope) {
        const NodeId counter = build_.operand(id, 0), inner = slope[build_.operand(id, 1)];
        if (!stops_at_terms_) return inner == kNoNode ? inner : build_.sum(counter, inner);
        if (counters_[build_.operand(id, 1)] == kNoNode)
            return inner == kNoNode ? inner : chain(build_.sum(counter, rules_.one.id), inner);
        NodeId total = inner;
        const std::vector<NodeId> bound = ir::bound_nodes(build_.graph(), id, counters_);
        std::vector<NodeId> entered;
        for (NodeId inside : bound)
            for (NodeId operand : build_[inside].operands)
                if (counters_[operand] == kNoNode && slope[operand] != kNoNode)
                    entered.push_back(operand);
        std::ranges::sort(entered);
        entered.erase(std::ranges::unique(entered).begin(), entered.end());
        for (NodeId from : entered) {
            const NodeId all = of_all_terms(id, bound, from);
            if (all == kNoNode) continue;
            const NodeId product = chain(all, slope[from]);
            total = total == kNoNode ? product : build_.apply(Op::fadd, {total, product});
        }
        return total;
    }

    // d sum / d (a value that is the same for all terms).
    NodeId of_all_terms(NodeId sum, const std::vector<NodeId>& bound, NodeId from) {
        Slopes slope(first_new_, kNoNode);
        slope[from] = rules_.one.id;
        stops_at_terms_ = false;
        for (NodeId inside : bound)
            slope[inside] = of_node(inside, slope);
        stops_at_terms_ = true;
        const NodeId term = slope[build_.operand(sum, 1)];
        return term == kNoNode ? term : build_.sum(build_.operand(sum, 0), term);
    }

    NodeId of_select(NodeId id, const Slopes& slope) {
        const NodeId condition = build_.operand(id, 0);
        const NodeId yes = entering(id, 1, slope), no = entering(id, 2, slope);
        if (yes == kNoNode && no == kNoNode) return kNoNode;
        auto or_zero = [&](NodeId x) { return x == kNoNode ? rules_.zero.id : x; };
        return build_.apply(Op::fselect, {condition, or_zero(yes), or_zero(no)}, build_[id].span);
    }

    NodeId of_operator(NodeId id, const Slopes& slope) {
        NodeId sum = kNoNode;
        const std::size_t arity = build_[id].operands.size();
        for (std::size_t position = 0; position < arity; ++position) {
            const NodeId inner = entering(id, position, slope);
            if (inner == kNoNode) continue;
            const NodeId term = chain(partials_of(id)[position], inner);
            if (build_.is_real(term, 0)) continue;
            sum = sum == kNoNode ? term : build_.apply(Op::fadd, {sum, term}, build_[id].span);
        }
        return sum;
    }

    // outer * inner, but nothing at all on the side of a condition where outer is zero: the inner
    // derivative may be infinite there.
    NodeId chain(NodeId outer, NodeId inner) {
        if (build_.is_real(outer, 0)) return outer;
        if (chooses_zero(outer)) {
            const NodeId condition = build_.operand(outer, 0);
            const NodeId no_side = build_.operand(outer, 2);
            const NodeId yes = chain(build_.operand(outer, 1), inner);
            return build_.apply(Op::fselect, {condition, yes, chain(no_side, inner)});
        }
        return build_.apply(Op::fmul, {outer, inner});
    }

    bool chooses_zero(NodeId id) const {
        for (; build_.is(id, Op::fselect); id = build_.operand(id, 2))
            if (build_.is_real(build_.operand(id, 1), 0) ||
                build_.is_real(build_.operand(id, 2), 0))
                return true;
        return false;
    }

    const std::vector<NodeId>& partials_of(NodeId id) {
        std::vector<NodeId>& known = partials_[id];
        if (known.empty()) {
            const ir::Node node = build_[id];
            auto operand = [&](std::size_t position) {
                return Expr{&build_,
                            position < node.operands.size() ? node.operands[position] : id};
            };
            for (Expr partial :
                 rules_.partials(node.op, operand(0), operand(1), operand(2), Expr{&build_, id}))
                known.push_back(partial.id);
        }
        return known;
    }

    Builder build_;
    Rules rules_{build_};
    std::vector<NodeId> order_, counters_;
    std::vector<std::vector<NodeId>> partials_;
    NodeId first_new_;
    bool stops_at_terms_ = false; // slopes do not enter terms of sums
};

} // namespace

Result<std::vector<NodeId>> derive(ir::Graph& graph, NodeId root, std::span<const NodeId> leaves) {
    Derivation derivation(graph, ir::reachable(graph, std::span(&root, 1)));
    std::vector<NodeId> slopes;
    for (NodeId leaf : leaves) {
        slopes.push_back(derivation.with_respect_to(leaf, root));
        if (derivation.too_large())
            return Error{ErrorCode::limit, "the derivative of this program needs more than " +
                                               std::to_string(kMaxDerivativeNodes) +
                                               " nodes: use fewer reads of grad buffers, or "
                                               "functions with fewer operations"};
    }
    return slopes;
}

} // namespace flexc::passes
