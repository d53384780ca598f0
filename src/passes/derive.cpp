#include "passes/derive.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "passes/limits.h"
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

// What the `derivative` column of ops.def is written in, and the column itself.
struct Rules {
    Builder& build;
    Expr zero{&build, build.real(0)};
    Expr one{&build, build.real(1)};

    Expr real(double value) { return {&build, build.real(value)}; }

// Every operator of ops.def is a function here.
#define FLEXC_OP(name, signature, derivative, reference, cuda, llvm)                               \
    template <typename... More> Expr name(Expr first, More... more) {                              \
        return first.make(Op::name, {first.id, more.id...});                                       \
    }
#include "ir/ops.def"

    // The derivative of min(x, y) with respect to x: 1, 0, or 0.5 for a tie; 1 if either is NaN.
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

// A derivative that is zero, by rule, where `alive` is false: a branch not taken, outside of a
// `clamp`, the other side of a tie. What it is multiplied by may be infinite there and must have no
// effect.
struct Slope {
    NodeId value =
        kNoNode; // kNoNode: 0 everywhere. What it is where it is not alive does not matter
    NodeId alive = kNoNode; // kNoNode: everywhere
    NodeId whole = kNoNode; // value where alive, else 0, if some node is that already

    bool is_zero() const { return value == kNoNode; }
    bool is_guarded() const { return alive != kNoNode; }
};

class Derivation {
  public:
    Derivation(ir::Graph& graph, std::vector<NodeId> order)
        : build_(graph), order_(std::move(order)), counters_(ir::counters_of(graph)),
          partials_(graph.size()), first_new_(graph.size()) {}

    NodeId with_respect_to(NodeId leaf, NodeId root) {
        Slopes slope(first_new_);
        stops_at_terms_ = counters_[leaf] != kNoNode;
        for (NodeId id : order_) {
            slope[id] = id == leaf ? Slope{rules_.one.id} : of_node(id, slope);
            if (too_large()) return kNoNode;
        }
        return slope[root].is_zero() ? kNoNode : whole(slope[root]);
    }

    bool too_large() const { return build_.graph().size() - first_new_ > kMaxDerivativeNodes; }

  private:
    using Slopes = std::vector<Slope>; // one for each of the program's nodes

    Slope of_node(NodeId id, const Slopes& slope) {
        const Op op = build_[id].op;
        if (op == Op::fselect) return of_select(id, slope);
        if (op == Op::sum) return of_sum(id, slope);
        return ir::info(op).differentiable ? of_operator(id, slope) : Slope{};
    }

    // The slope of an operand, as far as it enters through it.
    Slope entering(NodeId id, std::size_t position, const Slopes& slope) const {
        const NodeId operand = build_.operand(id, position);
        const bool enters_term = counters_[id] != kNoNode && counters_[operand] == kNoNode;
        return stops_at_terms_ && enters_term ? Slope{} : slope[operand];
    }

    // --- arithmetic of slopes
    NodeId zero() const { return rules_.zero.id; }
    NodeId whole(const Slope& x) {
        if (x.is_zero()) return zero();
        if (!x.is_guarded()) return x.value;
        return x.whole != kNoNode ? x.whole : build_.apply(Op::fselect, {x.alive, x.value, zero()});
    }

    Slope added(const Slope& x, const Slope& y, dsl::Span span = {}) {
        if (x.is_zero() || y.is_zero()) return x.is_zero() ? y : x;
        const NodeId sum = build_.apply(Op::fadd, {whole(x), whole(y)}, span);
        if (!x.is_guarded() || !y.is_guarded()) return {sum};
        return {sum, build_.apply(Op::bor, {x.alive, y.alive}), sum};
    }

    Slope chosen(NodeId condition, const Slope& yes, const Slope& no, dsl::Span span = {}) {
        if (yes.is_zero() && no.is_zero()) return {};
        const NodeId all = build_.apply(Op::fselect, {condition, whole(yes), whole(no)}, span);
        if (!yes.is_zero() && !no.is_zero() && !yes.is_guarded() && !no.is_guarded()) return {all};
        const auto alive = [&](const Slope& x) {
            return x.is_zero()      ? build_.boolean(false)
                   : x.is_guarded() ? x.alive
                                    : build_.boolean(true);
        };
        const NodeId value =
            yes.is_zero()  ? no.value
            : no.is_zero() ? yes.value
                           : build_.apply(Op::fselect, {condition, yes.value, no.value}, span);
        return {value, build_.apply(Op::bselect, {condition, alive(yes), alive(no)}), all};
    }

    // outer * inner
    Slope product(NodeId outer, const Slope& inner) {
        const Slope& by = taken_apart(outer);
        if (inner.is_zero() || by.is_zero()) return {};
        const NodeId value = build_.apply(Op::fmul, {by.value, inner.value});
        if (!by.is_guarded() && !inner.is_guarded()) return {value};
        const NodeId alive = !by.is_guarded() ? inner.alive
                             : !inner.is_guarded()
                                 ? by.alive
                                 : build_.apply(Op::band, {by.alive, inner.alive});
        Slope result{value, alive};
        // A sign has no selection that leaves out its factor, which must then be finite.
        if (!inner.is_guarded() && (chooses_zero(outer) || is_finite_constant(inner.value))) {
            int work = 0;
            result.whole = distributed(outer, inner.value, work);
        } else if (inner.whole != kNoNode && !by.is_guarded() && is_finite_constant(by.value)) {
            result.whole = build_.apply(Op::fmul, {by.value, inner.whole});
        }
        return result;
    }

    bool is_finite_constant(NodeId id) const {
        const auto value = build_.real_constant(id);
        return value && std::isfinite(*value);
    }

    // outer * inner, distributed over the nonzero sides of outer's selections if these are few;
    // else kNoNode.
    NodeId distributed(NodeId outer, NodeId inner, int& work) {
        constexpr int kMostSelects = 8;
        if (build_.is_real(outer, 0)) return outer;
        if (!chooses_zero(outer)) return build_.apply(Op::fmul, {outer, inner});
        if (++work > kMostSelects) return kNoNode;
        const NodeId condition = build_.operand(outer, 0), no_side = build_.operand(outer, 2);
        const NodeId yes = distributed(build_.operand(outer, 1), inner, work);
        const NodeId no = yes == kNoNode ? yes : distributed(no_side, inner, work);
        return no == kNoNode ? no : build_.apply(Op::fselect, {condition, yes, no});
    }

    bool chooses_zero(NodeId id) const {
        return build_.is(id, Op::fselect) && taken_apart_.at(id).is_guarded();
    }

    // Splits a factor into its value and a guard: the zeros that its selections choose become the
    // guard. Each selection is visited once.
    const Slope& taken_apart(NodeId factor) {
        std::vector<NodeId> pending = {factor};
        while (!pending.empty()) {
            const NodeId id = pending.back();
            if (taken_apart_.contains(id)) {
                pending.pop_back();
                continue;
            }
            if (!build_.is(id, Op::fselect)) {
                taken_apart_[id] = build_.is_real(id, 0) ? Slope{} : Slope{id};
                continue;
            }
            const NodeId condition = build_.operand(id, 0), yes = build_.operand(id, 1),
                         no = build_.operand(id, 2);
            const auto known_yes = taken_apart_.find(yes), known_no = taken_apart_.find(no);
            if (known_yes == taken_apart_.end()) pending.push_back(yes);
            if (known_no == taken_apart_.end()) pending.push_back(no);
            if (known_yes != taken_apart_.end() && known_no != taken_apart_.end())
                taken_apart_[id] = chosen(condition, known_yes->second, known_no->second);
        }
        return taken_apart_.at(factor);
    }

    // --- rules
    //
    // The leaf is either the same for all terms of a sum, or differs for each term. In the second
    // case the slope depends on the counter, and so does the slope of what terms take from other
    // sums, though on its own counter: the two slopes are multiplied outside of the sum.
    Slope of_sum(NodeId id, const Slopes& slope) {
        const NodeId counter = build_.operand(id, 0);
        const Slope& inner = slope[build_.operand(id, 1)];
        if (!stops_at_terms_) return of_terms(counter, inner);
        if (counters_[build_.operand(id, 1)] == kNoNode) return times_terms(counter, inner);
        Slope total = inner;
        const std::vector<NodeId> bound = ir::bound_nodes(build_.graph(), id, counters_);
        std::vector<NodeId> entered;
        for (NodeId inside : bound)
            for (NodeId operand : build_[inside].operands)
                if (counters_[operand] == kNoNode && !slope[operand].is_zero())
                    entered.push_back(operand);
        std::ranges::sort(entered);
        entered.erase(std::ranges::unique(entered).begin(), entered.end());
        for (NodeId from : entered) {
            const NodeId all = of_all_terms(id, bound, from);
            if (all != kNoNode) total = added(total, product(all, slope[from]));
        }
        return total;
    }

    // The sum of the terms' slopes; alive where any of them is.
    Slope of_terms(NodeId counter, const Slope& inner) {
        if (inner.is_zero()) return {};
        const NodeId total = build_.sum(counter, whole(inner));
        if (!inner.is_guarded()) return {total, has_terms(counter), total};
        const NodeId count = build_.sum(counter, build_.apply(Op::bool_to_int, {inner.alive}));
        return {total, build_.apply(Op::ilt, {build_.integer(0), count}), total};
    }

    // The slope of a sum whose terms do not depend on the counter: number of terms * slope.
    Slope times_terms(NodeId counter, const Slope& inner) {
        Slope result = product(build_.sum(counter, rules_.one.id), inner);
        const NodeId any = has_terms(counter);
        if (result.is_zero() || any == kNoNode) return result;
        return {result.value,
                result.is_guarded() ? build_.apply(Op::band, {any, result.alive}) : any, kNoNode};
    }

    // The condition that the counter has any value; kNoNode if it always does. Sizes are at least
    // 1.
    NodeId has_terms(NodeId counter) {
        const NodeId first = build_.operand(counter, 0), end = build_.operand(counter, 1);
        const auto from = build_.integer_constant(first);
        const auto to = build_.is(end, Op::size) ? std::optional<std::int64_t>(1)
                                                 : build_.integer_constant(end);
        return from && to && *from < *to ? kNoNode : build_.apply(Op::ilt, {first, end});
    }

    // d sum / d from, where `from` is the same for all terms.
    NodeId of_all_terms(NodeId sum, const std::vector<NodeId>& bound, NodeId from) {
        const auto [known, is_new] = of_all_terms_.try_emplace({sum, from}, kNoNode);
        if (!is_new) return known->second;
        Slopes slope(first_new_);
        slope[from] = {rules_.one.id};
        stops_at_terms_ = false;
        for (NodeId inside : bound)
            slope[inside] = of_node(inside, slope);
        stops_at_terms_ = true;
        const Slope& term = slope[build_.operand(sum, 1)];
        if (!term.is_zero()) known->second = build_.sum(build_.operand(sum, 0), whole(term));
        return known->second;
    }

    Slope of_select(NodeId id, const Slopes& slope) {
        return chosen(build_.operand(id, 0), entering(id, 1, slope), entering(id, 2, slope),
                      build_[id].span);
    }

    Slope of_operator(NodeId id, const Slopes& slope) {
        Slope sum;
        const std::size_t arity = build_[id].operands.size();
        for (std::size_t position = 0; position < arity; ++position) {
            const Slope inner = entering(id, position, slope);
            if (inner.is_zero()) continue;
            const Slope term = product(partials_of(id)[position], inner);
            if (term.is_zero() || build_.is_real(term.value, 0)) continue;
            sum = added(sum, term, build_[id].span);
        }
        return sum;
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
            if (node.op == Op::fabs) take_sign_apart(known[0], node.operands[0]);
        }
        return known;
    }

    // Guards the sign that is the derivative of abs(): it is zero at zero by rule.
    void take_sign_apart(NodeId sign, NodeId of) {
        if (!build_.is(sign, Op::fsign)) return;
        taken_apart_[sign] = {sign, build_.apply(Op::fne, {of, zero()}), sign};
    }

    Builder build_;
    Rules rules_{build_};
    std::vector<NodeId> order_, counters_;
    std::vector<std::vector<NodeId>> partials_;
    std::unordered_map<NodeId, Slope> taken_apart_;
    std::map<std::pair<NodeId, NodeId>, NodeId> of_all_terms_;
    NodeId first_new_;
    bool stops_at_terms_ = false; // slopes do not enter terms of sums
};

} // namespace

std::optional<std::vector<NodeId>> derive(ir::Graph& graph, NodeId root,
                                          std::span<const NodeId> leaves) {
    Derivation derivation(graph, ir::reachable(graph, std::span(&root, 1)));
    std::vector<NodeId> slopes;
    for (NodeId leaf : leaves) {
        slopes.push_back(derivation.with_respect_to(leaf, root));
        if (derivation.too_large()) return {};
    }
    return slopes;
}

} // namespace flexc::passes
