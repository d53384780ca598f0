#include "passes/address_split.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>

#include "passes/simplify.h"

namespace flexc::passes {

using analysis::Dependence;
using analysis::IndexForm;
using analysis::IndexForms;
using analysis::IndexTerm;
using analysis::kInsideHead;
using analysis::Product;
using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

class Splitter {
  public:
    Splitter(Mod& mod, const CapturedRead& read, const ReadPiece& piece)
        : build_(mod.program.graph), piece_(piece), read_(mod.program.graph[read.read]),
          forms_(mod.program.graph, mod.ranges, piece.where) {
        forms_.find(read_.operands);
    }

    AddressSplit split() {
        AddressSplit result;
        result.count = build_.integer(1);
        for (std::size_t i = read_.operands.size(); i-- > 0;) {
            AddressSplit::Index index = split_index(i);
            const NodeId before = result.count;
            add_scaled(result.parts, index.parts, before);
            result.count = build_.apply(Op::imul, {before, index.entries});
            result.indices.push_back(index);
        }
        std::ranges::reverse(result.indices);
        result.place = build_.integer(0);
        for (const NodeId part : {result.parts.query, result.parts.key, result.parts.rest})
            if (part != kNoNode) result.place = build_.apply(Op::iadd, {result.place, part});
        return result;
    }

  private:
    NodeId sum(NodeId x, NodeId y) { return x == kNoNode ? y : build_.apply(Op::iadd, {x, y}); }

    void add_scaled(AddressParts& to, const AddressParts& more, NodeId factor) {
        const auto add = [&](NodeId& part, NodeId value) {
            if (value != kNoNode) part = sum(part, build_.apply(Op::imul, {value, factor}));
        };
        add(to.query, more.query);
        add(to.key, more.key);
        add(to.rest, more.rest);
    }

    // What the node is where the piece's assumptions hold.
    NodeId resolved(NodeId root) {
        if (piece_.where.empty()) return root;
        // Copies of operands: what is built moves the graph's nodes.
        for (const NodeId id : ir::reachable(build_.graph(), std::span(&root, 1))) {
            if (resolved_.contains(id)) continue;
            const auto truth =
                build_[id].type == ir::Type::boolean ? forms_.truth(id) : std::optional<bool>();
            const NodeId chosen = forms_.chosen(id);
            if (truth)
                resolved_[id] = build_.boolean(*truth);
            else if (chosen != id)
                resolved_[id] = resolved_.at(chosen);
            else
                resolved_[id] = rebuilt(id);
        }
        return resolved_.at(root);
    }
    NodeId rebuilt(NodeId id) {
        const ir::Node node = build_[id];
        std::vector<NodeId> operands;
        for (const NodeId operand : node.operands)
            operands.push_back(resolved_.at(operand));
        if (operands == node.operands) return id;
        if (node.op == Op::read)
            return build_.graph().read(node.symbol, node.type, std::move(operands), node.span);
        if (node.op == Op::sum) return build_.sum(operands[0], operands[1], node.span);
        if (node.op == Op::counter) return build_.graph().counter(operands[0], operands[1]);
        return build_.apply(node.op, std::move(operands), node.span);
    }

    NodeId node_of(const IndexTerm& term) {
        NodeId node = build_.integer(term.coefficient.constant);
        for (const NodeId factor : term.coefficient.factors)
            node = build_.apply(Op::imul, {node, resolved(factor)});
        return term.node == kNoNode ? node : build_.apply(Op::imul, {node, resolved(term.node)});
    }

    AddressSplit::Index split_index(std::size_t i) {
        const SliceIndex& slice = piece_.slice[i];
        AddressSplit::Index index;
        index.entries = slice.entries.is_constant() ? build_.integer(slice.entries.constant)
                                                    : build_.graph().size_of(slice.entries.size);
        NodeId free = kNoNode;
        for (const IndexTerm& term : forms_.form(read_.operands[i])) {
            const unsigned uses = term.uses.bits & kInsideHead;
            NodeId& part = uses == 0                ? free
                           : uses == Dependence::q  ? index.parts.query
                           : uses == Dependence::kv ? index.parts.key
                                                    : index.parts.rest;
            part = sum(part, node_of(term));
        }
        index.first = build_.integer(slice.low);
        if (free == kNoNode && slice.low == 0) return index;
        if (free == kNoNode) free = build_.integer(0);
        if (slice.has_base) {
            index.first = build_.apply(Op::iadd, {free, index.first});
            free = build_.integer(-slice.low);
        } else {
            free = build_.apply(Op::isub, {free, index.first});
        }
        // With what is computed least often.
        NodeId& part = index.parts.query != kNoNode ? index.parts.query
                       : index.parts.key != kNoNode ? index.parts.key
                                                    : index.parts.rest;
        if (part != kNoNode) part = sum(part, free);
        return index;
    }

    Builder build_;
    const ReadPiece& piece_;
    ir::Node read_;
    IndexForms forms_;
    std::unordered_map<NodeId, NodeId> resolved_;
};

// partial / d_score, taken apart along products and choices.
class Factor {
  public:
    Factor(ir::Graph& graph, NodeId d_score) : build_(graph), d_score_(d_score) {}

    std::optional<NodeId> of(NodeId id, int depth = 12) {
        if (id == d_score_) return build_.real(1);
        if (build_.is_real(id, 0)) return build_.real(0);
        if (depth == 0) return {};
        const ir::Node node = build_[id];
        const auto inside = [&](std::size_t i) { return of(node.operands[i], depth - 1); };
        const auto apply = [&](NodeId x, NodeId y) { return build_.apply(node.op, {x, y}); };
        switch (node.op) {
        case Op::fneg:
            if (const auto x = inside(0)) return build_.apply(Op::fneg, {*x});
            return {};
        case Op::fmul:
            if (const auto x = inside(0)) return apply(*x, node.operands[1]);
            if (const auto y = inside(1)) return apply(node.operands[0], *y);
            return {};
        case Op::fdiv:
            if (const auto x = inside(0)) return apply(*x, node.operands[1]);
            return {};
        case Op::fadd:
        case Op::fsub:
            if (const auto x = inside(0))
                if (const auto y = inside(1)) return apply(*x, *y);
            return {};
        case Op::fselect:
            if (const auto x = inside(1))
                if (const auto y = inside(2))
                    return build_.apply(Op::fselect, {node.operands[0], *x, *y});
            return {};
        default: return {};
        }
    }

  private:
    Builder build_;
    NodeId d_score_;
};

} // namespace

AddressSplit split_address(Mod& mod, const CapturedRead& read, const ReadPiece& piece) {
    return Splitter(mod, read, piece).split();
}

NodeId factor_of_score_gradient(Mod& mod, const ReadGradient& gradient) {
    Builder build(mod.program.graph);
    if (build.is_real(mod.d_score, 1)) return gradient.partial;
    return Factor(mod.program.graph, mod.d_score).of(gradient.partial).value_or(kNoNode);
}

} // namespace flexc::passes
