#include "passes/address_split.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <span>
#include <unordered_map>
#include <utility>

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

NodeId sum(Builder& build, NodeId x, NodeId y) {
    return x == kNoNode ? y : build.apply(Op::iadd, {x, y});
}

// Builds the place of an element in the slice: indices in row-major order.
AddressSplit in_order(Builder& build, std::vector<AddressSplit::Index> indices) {
    AddressSplit result;
    result.count = build.integer(1);
    for (const AddressSplit::Index& index : std::views::reverse(indices)) {
        const NodeId before = result.count;
        const auto add = [&](NodeId& part, NodeId value) {
            if (value != kNoNode) part = sum(build, part, build.apply(Op::imul, {value, before}));
        };
        add(result.parts.query, index.parts.query);
        add(result.parts.key, index.parts.key);
        add(result.parts.rest, index.parts.rest);
        result.count = build.apply(Op::imul, {before, index.entries});
    }
    result.indices = std::move(indices);
    result.place = build.integer(0);
    for (const NodeId part : {result.parts.query, result.parts.key, result.parts.rest})
        if (part != kNoNode) result.place = build.apply(Op::iadd, {result.place, part});
    return result;
}

class Splitter {
  public:
    Splitter(Mod& mod, const CapturedRead& read, const ReadPiece& piece)
        : build_(mod.program.graph), piece_(piece), read_(mod.program.graph[read.read]),
          forms_(mod.program.graph, mod.ranges, piece.where) {
        forms_.find(read_.operands);
    }

    AddressSplit split() {
        std::vector<AddressSplit::Index> indices;
        for (std::size_t i = 0; i < read_.operands.size(); ++i)
            indices.push_back(split_index(i));
        return in_order(build_, std::move(indices));
    }

  private:
    NodeId sum(NodeId x, NodeId y) { return passes::sum(build_, x, y); }

    // The node simplified under the piece's assumptions.
    NodeId resolved(NodeId root) {
        if (piece_.where.empty()) return root;
        // Copy the operands, as building nodes reallocates the graph.
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
        // Add it to the part that is computed least often.
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

} // namespace

AddressSplit split_address(Mod& mod, const CapturedRead& read, const ReadPiece& piece) {
    return Splitter(mod, read, piece).split();
}

AddressSplit split_by_dims(Mod& mod, const CapturedRead& read) {
    Builder build(mod.program.graph);
    const ir::Node node = mod.program.graph[read.read];
    std::vector<AddressSplit::Index> indices;
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
        AddressSplit::Index& index = indices.emplace_back();
        const NodeId operand = node.operands[i];
        const unsigned uses = mod.dependence[operand].bits & kInsideHead;
        if (uses == 0) {
            index.first = operand;
            index.entries = build.integer(1);
            continue;
        }
        const ir::Dim& dim = mod.program.buffers[node.symbol].dims[i];
        index.first = build.integer(0);
        index.entries =
            dim.is_constant() ? build.integer(dim.constant) : build.graph().size_of(dim.size);
        (uses == Dependence::q    ? index.parts.query
         : uses == Dependence::kv ? index.parts.key
                                  : index.parts.rest) = operand;
    }
    return in_order(build, std::move(indices));
}

} // namespace flexc::passes
