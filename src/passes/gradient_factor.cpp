#include "passes/gradient_factor.h"

#include <algorithm>
#include <span>
#include <vector>

#include "passes/simplify.h"

namespace flexc::passes {

using ir::NodeId;
using ir::Op;

namespace {

constexpr int kMaxRatioDepth = 8;            // of products, and of choices and sums above them
constexpr std::size_t kMaxRatioFactors = 24; // of a derivative

// constant * above / below.
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

    // The node over what was given, each choice and sum of it by its parts.
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

} // namespace

NodeId gradient_factor(Mod& mod, const ReadGradient& gradient) {
    if (mod.counters[gradient.read] != ir::kNoNode) return ir::kNoNode;
    const auto factor = Ratio(mod.program.graph, mod.d_score).of(gradient.partial);
    if (!factor) return ir::kNoNode;
    const auto uses_score = [&](NodeId id) { return mod.program.graph[id].op == Op::score; };
    return std::ranges::any_of(ir::reachable(mod.program.graph, std::span(&*factor, 1)), uses_score)
               ? ir::kNoNode
               : *factor;
}

} // namespace flexc::passes
