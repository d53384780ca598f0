#include "passes/row_gradient.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "passes/gradient_sum.h"
#include "passes/simplify.h"

namespace flexc::passes {

using analysis::Dependence;
using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

// factor * score + addend; kNoNode is 0. The factor does not use the score, nor does the addend.
struct Line {
    NodeId factor = kNoNode, addend = kNoNode;
};

class Lines {
  public:
    explicit Lines(ir::Graph& graph) : build_(graph) {}

    // Empty where the score enters otherwise.
    std::optional<Line> of(NodeId id) {
        if (const auto known = known_.find(id); known != known_.end()) return known->second;
        const std::optional<Line> line = find(id);
        known_.emplace(id, line);
        return line;
    }

    // The same, where factor and addend are of the row.
    std::optional<Line> of_row(NodeId id) {
        const std::optional<Line> line = of(id);
        return line && is_of_row(line->factor) && is_of_row(line->addend) ? line : std::nullopt;
    }
    bool is_of_row(NodeId id) {
        return id == kNoNode || (!uses(id, Dependence::kv) && !uses(id, Dependence::score));
    }

  private:
    bool uses(NodeId id, Dependence::Bit bit) {
        if (dependence_.size() <= id) dependence_ = analysis::dependences(build_.graph());
        return dependence_[id].has(bit);
    }

    NodeId both(Op op, NodeId x, NodeId y) {
        if (y == kNoNode) return x;
        if (x == kNoNode) return op == Op::fsub ? build_.apply(Op::fneg, {y}) : y;
        return build_.apply(op, {x, y});
    }
    NodeId by(Op op, NodeId x, NodeId y) { return x == kNoNode ? x : build_.apply(op, {x, y}); }
    NodeId chosen(NodeId condition, NodeId yes, NodeId no) {
        if (yes == kNoNode && no == kNoNode) return kNoNode;
        const auto or_zero = [&](NodeId x) { return x == kNoNode ? build_.real(0) : x; };
        return build_.apply(Op::fselect, {condition, or_zero(yes), or_zero(no)});
    }

    std::optional<Line> find(NodeId id) {
        if (!uses(id, Dependence::score)) return Line{kNoNode, id};
        const std::vector<NodeId> operands = build_[id].operands; // the graph may grow
        const Op op = build_[id].op;
        switch (op) {
        case Op::score: return Line{build_.real(1), kNoNode};
        case Op::fneg:
            if (const auto x = of(operands[0]))
                return Line{both(Op::fsub, kNoNode, x->factor), both(Op::fsub, kNoNode, x->addend)};
            return {};
        case Op::fadd:
        case Op::fsub: {
            const auto x = of(operands[0]), y = of(operands[1]);
            if (!x || !y) return {};
            return Line{both(op, x->factor, y->factor), both(op, x->addend, y->addend)};
        }
        case Op::fmul:
        case Op::fdiv: {
            const bool swapped = op == Op::fmul && uses(operands[1], Dependence::score);
            const NodeId line = operands[swapped ? 1 : 0], other = operands[swapped ? 0 : 1];
            if (uses(other, Dependence::score)) return {};
            const auto x = of(line);
            if (!x) return {};
            return Line{by(op, x->factor, other), by(op, x->addend, other)};
        }
        case Op::fselect: {
            if (uses(operands[0], Dependence::score)) return {};
            const auto yes = of(operands[1]), no = of(operands[2]);
            if (!yes || !no) return {};
            return Line{chosen(operands[0], yes->factor, no->factor),
                        chosen(operands[0], yes->addend, no->addend)};
        }
        default: return {};
        }
    }

    Builder build_;
    std::vector<Dependence> dependence_;
    std::map<NodeId, std::optional<Line>> known_;
};

} // namespace

void find_row_gradients(Mod& mod) {
    Lines lines(mod.program.graph);
    const std::vector<NodeId> counters = ir::counters_of(mod.program.graph);
    mod.is_line_of_row = lines.of_row(mod.score).has_value();
    for (ReadGradient& gradient : mod.gradients) {
        if (counters[gradient.read] != kNoNode || !lines.is_of_row(gradient.read)) continue;
        const std::optional<Line> line = lines.of_row(gradient.partial);
        if (!line) continue;
        gradient.factor = line->factor;
        gradient.addend = line->addend;
    }
}

bool has_products_of_queries(const Mod& mod) {
    if (mod.d_score == kNoNode || mod.counters[mod.d_score] != kNoNode ||
        mod.place[mod.d_score] == Place::column || mod.place[mod.d_score] == Place::element)
        return false;
    // What is found from dS in other ways is of the dS that dq has, and that is rounded to 16 bits:
    // the gradient of one row would be further from the truth than by sums in the kernel.
    const auto stays = [&](const ReadGradient& gradient) {
        if (gradient.factor != kNoNode)
            return mod.place[gradient.read] == Place::launch ||
                   mod.place[gradient.read] == Place::head;
        if (gradient.addend != kNoNode) return true;
        const bool sums_tile =
            mod.place[gradient.read] == Place::element && is_gradient_of_score(mod, gradient);
        return !sums_tile && !mod.dependence[gradient.partial].has(Dependence::score);
    };
    return std::ranges::all_of(mod.gradients, stays) &&
           std::ranges::any_of(mod.gradients, [](const ReadGradient& gradient) {
               return gradient.factor != kNoNode;
           });
}

} // namespace flexc::passes
