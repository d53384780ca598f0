#include "passes/gradient_factor.h"

#include <algorithm>
#include <span>
#include <vector>

#include "passes/cost.h"
#include "passes/dense_bias.h"
#include "passes/facts.h"
#include "passes/gradient_sum.h"
#include "passes/simplify.h"
#include "passes/table_gradient.h"

namespace flexc::passes {

using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

constexpr int kMaxRatioDepth = 8;            // of products, and of choices and sums above them
constexpr std::size_t kMaxRatioFactors = 24; // of a derivative
// Estimated cost, in instructions, of adding an element's product to a sum for a head.
constexpr int kSum = 6;

// A product: constant * above / below.
struct RealProduct {
    double constant = 1;
    std::vector<NodeId> above, below;
    bool is_one() const { return constant == 1 && above.empty() && below.empty(); }
};

class Ratio {
  public:
    Ratio(ir::Graph& graph, NodeId by) : build_(graph) {
        divides_ = flatten(by, false, kMaxRatioDepth, by_) && by_.constant != 0;
    }

    // Returns the node divided by the constructor's `by`; choices and sums are divided part by
    // part.
    std::optional<NodeId> of(NodeId id, int depth = kMaxRatioDepth) {
        if (!divides_) return {};
        if (by_.is_one()) return id;
        if (build_.is_real(id, 0)) return id;
        if (auto ratio = of_product(id)) return ratio;
        if (depth == 0) return {};
        const ir::Node node = build_[id];
        const bool is_choice = node.op == Op::fselect;
        if (!is_choice && node.op != Op::fadd && node.op != Op::fsub) return {};
        std::vector<NodeId> operands = node.operands;
        for (std::size_t i = is_choice ? 1 : 0; i < operands.size(); ++i) {
            const auto ratio = of(operands[i], depth - 1);
            if (!ratio) return {};
            operands[i] = *ratio;
        }
        return build_.apply(node.op, std::move(operands));
    }

  private:
    bool flatten(NodeId id, bool inverse, int depth, RealProduct& into) const {
        const ir::Node& node = build_[id];
        if (const auto constant = build_.real_constant(id)) {
            into.constant = inverse ? into.constant / *constant : into.constant * *constant;
            return true;
        }
        const auto operand = [&](std::size_t i, bool below) {
            return flatten(node.operands[i], inverse != below, depth - 1, into);
        };
        if (depth > 0) {
            if (node.op == Op::fmul) return operand(0, false) && operand(1, false);
            if (node.op == Op::fdiv) return operand(0, false) && operand(1, true);
            if (node.op == Op::fneg) {
                into.constant = -into.constant;
                return operand(0, false);
            }
        }
        (inverse ? into.below : into.above).push_back(id);
        return into.above.size() + into.below.size() <= kMaxRatioFactors;
    }

    static bool take(std::vector<NodeId>& from, const std::vector<NodeId>& factors) {
        return std::ranges::all_of(factors, [&](NodeId factor) {
            const auto found = std::ranges::find(from, factor);
            if (found == from.end()) return false;
            from.erase(found);
            return true;
        });
    }

    std::optional<NodeId> of_product(NodeId id) {
        RealProduct product;
        if (!flatten(id, false, kMaxRatioDepth, product) || !take(product.above, by_.above) ||
            !take(product.below, by_.below))
            return {};
        NodeId ratio = build_.real(product.constant / by_.constant);
        for (const NodeId factor : product.above)
            ratio = build_.apply(Op::fmul, {ratio, factor});
        for (const NodeId factor : product.below)
            ratio = build_.apply(Op::fdiv, {ratio, factor});
        return ratio;
    }

    Builder build_;
    RealProduct by_;
    bool divides_ = false;
};

bool is_of_head(const Mod& mod, NodeId id) {
    return mod.place[id] == Place::launch || mod.place[id] == Place::head;
}

// A number for a head, times a choice between 1 and 0.
struct ChosenFactor {
    NodeId factor = kNoNode, choice = kNoNode;
};
class Chooser {
  public:
    explicit Chooser(Mod& mod) : mod_(mod), build_(mod.program.graph) {}

    // Nothing for a number of the head itself.
    std::optional<ChosenFactor> of(NodeId id) {
        if (is_number_of_head(id)) return {};
        const auto choice = choice_of(id, kMaxRatioDepth);
        if (!choice || factor_ == kNoNode) return {};
        return ChosenFactor{factor_, *choice};
    }

  private:
    std::optional<NodeId> choice_of(NodeId id, int depth) {
        if (build_.is_real(id, 0)) return id;
        const std::vector<NodeId> operands = build_[id].operands; // the graph may grow
        if (build_.is(id, Op::fselect) && depth > 0) {
            const auto first = choice_of(operands[1], depth - 1),
                       second = choice_of(operands[2], depth - 1);
            if (!first || !second) return {};
            return build_.apply(Op::fselect, {operands[0], *first, *second});
        }
        if (!is_number_of_head(id) || (factor_ != kNoNode && factor_ != id)) return {};
        factor_ = id;
        return build_.real(1);
    }
    // Of products that were made since the mod's facts were found, the operands tell.
    bool is_number_of_head(NodeId id) const {
        if (id < mod_.place.size()) return is_of_head(mod_, id);
        return std::ranges::all_of(build_[id].operands,
                                   [&](NodeId operand) { return is_number_of_head(operand); });
    }

    const Mod& mod_;
    Builder build_;
    NodeId factor_ = kNoNode;
};

// Makes partial / d_score the factor of these gradients. A derivative near 0 is replaced by a
// number that has no effect on other gradients of the score but can be divided by.
void divide_by_derivative(Mod& mod, const std::vector<ReadGradient*>& divided) {
    constexpr double kLeast = 0x1p-100;
    Builder build(mod.program.graph);
    const NodeId derivative = mod.d_score, least = build.real(kLeast);
    const NodeId is_small = build.apply(Op::flt, {build.apply(Op::fabs, {derivative}), least});
    mod.d_score = build.apply(Op::fselect, {is_small, least, derivative});
    for (ReadGradient& gradient : mod.gradients)
        if (gradient.partial == derivative) gradient.partial = mod.d_score;
    for (ReadGradient* gradient : divided)
        gradient->sum_factor = build.apply(Op::fdiv, {gradient->partial, mod.d_score});
}

// Whether elements of one distance read different places.
bool is_of_elements(const Mod& mod, const ReadGradient& gradient) {
    return mod.place[gradient.read] == Place::element && !mod.of_distance[gradient.read];
}

bool is_of_term(const Mod& mod, const ReadGradient& gradient) {
    return mod.counters[gradient.read] != kNoNode;
}

// Fills the factors of the gradients of sums' terms: of all or of none, because elements that add
// some of them one by one take so long that no other sum matters. divides: as of
// find_sum_factors(); then these gradients follow in `divided`.
void find_factors_of_terms(Mod& mod, bool divides, std::vector<ReadGradient*>& divided) {
    const std::size_t known = mod.program.graph.size();
    for (ReadGradient& gradient : mod.gradients) {
        if (!is_of_term(mod, gradient)) continue;
        gradient.sum_factor = is_gradient_of_score(mod, gradient)
                                  ? Builder(mod.program.graph).real(1)
                                  : gradient_factor(mod, gradient);
    }
    find_facts_since(mod, known);
    const auto is_by_distance = [&](NodeId id) { return bool{mod.of_distance[id]}; };
    bool all = true;
    for (ReadGradient& gradient : mod.gradients) {
        if (!is_of_term(mod, gradient)) continue;
        if (gradient.sum_factor != kNoNode)
            all = all && is_by_distance(gradient.sum_factor);
        else if (divides && is_by_distance(gradient.partial))
            divided.push_back(&gradient);
        else
            all = false;
    }
    if (all) return;
    divided.clear();
    for (ReadGradient& gradient : mod.gradients)
        if (is_of_term(mod, gradient)) gradient.sum_factor = kNoNode;
}

} // namespace

NodeId gradient_factor(Mod& mod, const ReadGradient& gradient) {
    const auto factor = Ratio(mod.program.graph, mod.d_score).of(gradient.partial);
    if (!factor) return kNoNode;
    const auto uses_score = [&](NodeId id) { return mod.program.graph[id].op == Op::score; };
    return std::ranges::any_of(ir::reachable(mod.program.graph, std::span(&*factor, 1)), uses_score)
               ? kNoNode
               : *factor;
}

void find_sum_factors(Mod& mod, bool divides) {
    if (mod.gradients.empty() || !mod.program.is_dense()) return;
    // Warps that sum over diagonals are not available if they have other sums to compute or copy
    // biases.
    const auto is_of_element = [&](const ReadGradient& gradient) {
        return is_of_elements(mod, gradient);
    };
    const bool sums_heads =
        std::ranges::none_of(mod.gradients, is_of_element) && dense_bias_of_score(mod) == kNoNode;
    const auto may_have_factor = [&](const ReadGradient& gradient) {
        if (is_of_term(mod, gradient) || gradient.is_of_row || is_gradient_of_score(mod, gradient))
            return false;
        if (is_of_head(mod, gradient.read))
            return sums_heads && costs_more(mod, gradient.partial, kSum);
        if (!is_of_element(gradient)) return mod.place[gradient.read] == Place::element;
        const CapturedRead* read = captured_read(mod, gradient.read);
        return read != nullptr && is_table(*read);
    };
    const auto is_factor = [&](const ReadGradient& gradient, NodeId id) {
        return is_of_element(gradient) ? is_of_head(mod, id) : bool{mod.of_distance[id]};
    };
    divides = divides && is_of_head(mod, mod.d_score);
    std::vector<ReadGradient*> divided;
    if (sums_heads) find_factors_of_terms(mod, divides, divided);
    const std::size_t known = mod.program.graph.size();
    for (ReadGradient& gradient : mod.gradients) {
        if (!may_have_factor(gradient)) continue;
        gradient.sum_factor = gradient_factor(mod, gradient);
        if (gradient.sum_factor != kNoNode && is_of_element(gradient) &&
            !constant_factor(mod, gradient))
            if (const auto chosen = Chooser(mod).of(gradient.sum_factor)) {
                gradient.sum_factor = chosen->factor;
                gradient.choice = chosen->choice;
            }
        if (gradient.sum_factor == kNoNode && divides && is_factor(gradient, gradient.partial))
            divided.push_back(&gradient);
    }
    if (!divided.empty()) divide_by_derivative(mod, divided);
    find_facts_since(mod, known);
    for (ReadGradient& gradient : mod.gradients)
        if (gradient.sum_factor != kNoNode && !is_factor(gradient, gradient.sum_factor))
            gradient.sum_factor = kNoNode;
}

} // namespace flexc::passes
