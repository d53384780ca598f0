#include "passes/hidden_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "analysis/interval.h"
#include "passes/facts.h"
#include "passes/simplify.h"

namespace flexc::passes {

using analysis::Dependence;
using analysis::RealInterval;
using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr RealInterval kModerate{-kModerateScore, kModerateScore, false};

bool is_finite(RealInterval x) { return !x.nan && std::isfinite(x.low) && std::isfinite(x.high); }

class Finder {
  public:
    explicit Finder(Mod& mod)
        : program_(mod.program), build_(program_.graph), uses_(mod.dependence), forms_(mod.affine),
          known_(program_.graph.size()), can_hide_(program_.graph.size()) {}

    std::optional<HiddenScores> find(NodeId score) {
        const std::vector<NodeId> order = ir::reachable(program_.graph, std::span(&score, 1));
        for (const NodeId id : order)
            can_hide_[id] = finds_source(id);
        if (!can_hide_[score]) return {};
        for (const NodeId id : order)
            if (uses_score(id)) known_[id] = of_node(id);
        const Known known = of(score);
        if (build_.is_boolean(known.of_any, false) && build_.is_boolean(known.of_moderate, false))
            return {};
        return HiddenScores{known.of_any, known.of_moderate};
    }

  private:
    struct Known {
        NodeId of_any = kNoNode, of_moderate = kNoNode;
        // The value's range for moderate scores, if `assumed` is true of the other operands.
        RealInterval range;
        NodeId assumed = kNoNode;
    };

    bool uses_score(NodeId id) const { return uses_[id].has(Dependence::score); }
    bool uses_position(NodeId id) const {
        return uses_[id].has(Dependence::q) || uses_[id].has(Dependence::kv);
    }

    bool finds_source(NodeId id) const {
        const ir::Node& node = build_[id];
        if (node.op == Op::const_real) return node.real == -kInfinity;
        if (node.op == Op::read)
            return node.type == ir::Type::real && uses_position(id) &&
                   std::ranges::all_of(node.operands, [&](NodeId index) {
                       return !uses_position(index) || is_shifted_position(forms_[index]);
                   });
        return std::ranges::any_of(node.operands,
                                   [&](NodeId operand) { return can_hide_[operand]; });
    }

    NodeId apply(Op op, NodeId x, NodeId y) { return build_.apply(op, {x, y}); }
    NodeId both(NodeId x, NodeId y) { return apply(Op::band, x, y); }
    NodeId either(NodeId x, NodeId y) { return apply(Op::bor, x, y); }

    Known of(NodeId id) {
        if (uses_score(id)) return known_[id];
        Known known;
        known.of_any =
            can_hide_[id] ? apply(Op::feq, id, build_.real(-kInfinity)) : build_.boolean(false);
        known.of_moderate = known.of_any;
        if (const auto constant = build_.real_constant(id)) {
            known.range = {*constant, *constant, std::isnan(*constant)};
            known.assumed = build_.boolean(true);
        } else {
            known.range = kModerate;
            known.assumed =
                apply(Op::fle, build_.apply(Op::fabs, {id}), build_.real(kModerateScore));
        }
        return known;
    }

    // The condition under which adding or subtracting this keeps -inf.
    NodeId keeps(NodeId id, const Known& known, bool added) {
        if (uses_score(id)) return is_finite(known.range) ? known.assumed : build_.boolean(false);
        return added ? apply(Op::flt, id, build_.real(kInfinity))
                     : apply(Op::flt, build_.real(-kInfinity), id);
    }
    // Adds the case that operand `hiding` is -inf and the other one keeps it so.
    void add_sum(Known& sum, const ir::Node& node, std::size_t hiding, const Known& x,
                 const Known& y) {
        const NodeId other = node.operands[1 - hiding];
        const NodeId kept = keeps(other, y, node.op == Op::fadd);
        sum.of_moderate = either(sum.of_moderate, both(x.of_moderate, kept));
        if (!uses_score(other)) sum.of_any = either(sum.of_any, both(x.of_any, kept));
    }

    Known of_node(NodeId id) {
        // Copy the node, as building nodes reallocates the graph.
        const ir::Node node = build_[id];
        const NodeId no = build_.boolean(false);
        Known known{no, no, {}, no};
        if (node.op == Op::score) {
            known.range = kModerate;
            known.assumed = build_.boolean(true);
        } else if (node.op == Op::fselect && !uses_score(node.operands[0])) {
            const NodeId condition = node.operands[0];
            const Known x = of(node.operands[1]), y = of(node.operands[2]);
            known.of_any = build_.apply(Op::bselect, {condition, x.of_any, y.of_any});
            known.of_moderate =
                build_.apply(Op::bselect, {condition, x.of_moderate, y.of_moderate});
            known.range = hull(x.range, y.range);
            known.assumed = both(x.assumed, y.assumed);
        } else if (!ir::info(node.op).is_leaf() &&
                   std::ranges::all_of(
                       node.operands, [&](NodeId x) { return build_[x].type == ir::Type::real; })) {
            std::vector<Known> operands;
            std::vector<RealInterval> ranges;
            known.assumed = build_.boolean(true);
            for (const NodeId operand : node.operands) {
                operands.push_back(of(operand));
                ranges.push_back(operands.back().range);
                known.assumed = both(known.assumed, operands.back().assumed);
            }
            known.range = analysis::transfer(node.op, ranges);
            if (node.op == Op::fadd || node.op == Op::fsub)
                add_sum(known, node, 0, operands[0], operands[1]);
            if (node.op == Op::fadd) add_sum(known, node, 1, operands[1], operands[0]);
        }
        return known;
    }

    ir::Program& program_;
    Builder build_;
    // Facts of the nodes that existed at the start.
    const std::vector<Dependence>& uses_;
    const std::vector<analysis::AffineForm>& forms_;
    std::vector<Known> known_;   // of those that use score
    std::vector<bool> can_hide_; // -inf comes from here, or from an operand
};

} // namespace

std::optional<HiddenScores> find_hidden_scores(Mod& mod) {
    const std::size_t known = mod.program.graph.size();
    const auto found = Finder(mod).find(mod.score);
    if (mod.program.graph.size() != known) find_facts(mod);
    return found;
}

} // namespace flexc::passes
