#include "passes/bounds.h"

#include <array>

#include "analysis/range.h"
#include "passes/simplify.h"

namespace flexc::passes {

using ir::NodeId;
using ir::Op;

namespace {

class Faults {
  public:
    explicit Faults(ir::Program& program)
        : program_(program), build_(program.graph), ranges_(analysis::ranges(program)),
          fault_(program.graph.size(), ir::kNoNode) {}

    void find(NodeId root) {
        for (NodeId id : ir::reachable(program_.graph, std::span(&root, 1)))
            if (fault_[id] == ir::kNoNode) fault_[id] = of_node(id);
    }
    NodeId of(NodeId id) const { return fault_[id]; }

    NodeId either(NodeId x, NodeId y) { return build_.apply(Op::bor, {x, y}); }
    NodeId both(NodeId x, NodeId y) { return build_.apply(Op::band, {x, y}); }

  private:
    NodeId of_node(NodeId id) {
        // Copy the node, as building nodes reallocates the graph.
        const ir::Node node = build_[id];
        switch (node.op) {
        case Op::band: return after(node, node.operands[0]);
        case Op::bor: return after(node, build_.apply(Op::bnot, {node.operands[0]}));
        case Op::bselect:
        case Op::iselect:
        case Op::fselect: {
            const NodeId condition = node.operands[0];
            return either(of(condition), build_.apply(Op::bselect, {condition, of(node.operands[1]),
                                                                    of(node.operands[2])}));
        }
        case Op::sum: {
            const NodeId term = build_.apply(Op::bool_to_int, {of(node.operands[1])});
            const NodeId count = build_.sum(node.operands[0], term);
            return build_.apply(Op::ilt, {build_.integer(0), count});
        }
        default: break;
        }
        NodeId result = build_.boolean(false);
        for (NodeId operand : node.operands)
            result = either(result, of(operand));
        return node.op == Op::read ? either(result, outside(id, node)) : result;
    }

    // Counts the second operand only where `reached` is true.
    NodeId after(const ir::Node& node, NodeId reached) {
        return either(of(node.operands[0]), both(reached, of(node.operands[1])));
    }

    NodeId outside(NodeId id, const ir::Node& node) {
        NodeId result = build_.boolean(false);
        for (std::size_t i = 0; i < node.operands.size(); ++i) {
            if (ranges_.in_range[id][i]) continue;
            const ir::Dim& dim = program_.buffers[node.symbol].dims[i];
            const NodeId extent =
                dim.is_constant() ? build_.integer(dim.constant) : program_.graph.size_of(dim.size);
            const NodeId index = node.operands[i];
            result = either(result, build_.apply(Op::ilt, {index, build_.integer(0)}));
            result = either(result, build_.apply(Op::ile, {extent, index}));
        }
        return result;
    }

    ir::Program& program_;
    Builder build_;
    analysis::Ranges ranges_;
    std::vector<NodeId> fault_; // of the nodes that were there at the start
};

} // namespace

NodeId out_of_range(ir::Program& program, NodeId score, NodeId mask, NodeId sink) {
    Faults faults(program);
    faults.find(mask);
    faults.find(score);
    const NodeId result = faults.either(faults.of(mask), faults.both(mask, faults.of(score)));
    if (sink == ir::kNoNode) return result;
    faults.find(sink);
    return faults.either(result, faults.of(sink));
}

} // namespace flexc::passes
