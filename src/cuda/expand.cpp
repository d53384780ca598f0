#include "cuda/expand.h"

#include "analysis/distance.h"

namespace flexc::cuda {

namespace {

using analysis::Dependence;
using ir::kNoNode;
using ir::NodeId;
using ir::Op;

// Of each kind: vectors take shared memory, and a read of it for every element.
constexpr std::size_t kMostValues = 3;

class ExpandedFinder {
  public:
    ExpandedFinder(const passes::Mod& mod, ScoreParts& parts)
        : mod_(mod), parts_(parts), seen_(mod.program.graph.size()) {}

    void visit(NodeId id) {
        const ir::Node& node = mod_.program.graph[id];
        // What changes with the counter of a sum is computed in its loop.
        if (seen_[id] || mod_.counters[id] != kNoNode) return;
        seen_[id] = true;
        const Dependence uses = mod_.dependence[id];
        if (!uses.has(Dependence::kv)) return;
        if (!uses.has(Dependence::q) && !uses.has(Dependence::score))
            take(id, parts_.key_values);
        else if (analysis::is_of_distance(mod_.program.graph, mod_.dependence, id))
            take(id, parts_.distance_values);
        else
            for (const NodeId operand : node.operands)
                visit(operand);
    }

  private:
    void take(NodeId id, std::vector<NodeId>& values) const {
        if (values.size() < kMostValues && fits_word(id) && is_dear(id)) values.push_back(id);
    }
    bool fits_word(NodeId id) const {
        const ir::Node& node = mod_.program.graph[id];
        if (node.type != ir::Type::integer) return true;
        return node.op == Op::read && mod_.program.buffers[node.symbol].dtype != DType::i64;
    }
    // More than what reading the value from shared memory would cost.
    bool is_dear(NodeId id) const {
        constexpr int kCheapOperations = 3;
        int operations = 0;
        for (const NodeId part : ir::reachable(mod_.program.graph, std::span(&id, 1))) {
            const Op op = mod_.program.graph[part].op;
            if (op == Op::read || op == Op::sum) return true;
            operations += !ir::info(op).is_leaf();
        }
        return operations > kCheapOperations;
    }

    const passes::Mod& mod_;
    ScoreParts& parts_;
    std::vector<bool> seen_;
};

} // namespace

void find_expanded(const passes::Mod& mod, ScoreParts& parts) {
    if (parts.key_addend != kNoNode) parts.key_values = {parts.key_addend};
    if (parts.distance_addend != kNoNode) parts.distance_values = {parts.distance_addend};
    const NodeId whole = parts.found() ? parts.element_addend : mod.score;
    if (whole != kNoNode) ExpandedFinder(mod, parts).visit(whole);
}

ExpandedValues expanded_values(const FoldedMod& folded) {
    const ScoreParts& parts = folded.parts;
    Dependence uses;
    for (const std::vector<NodeId>& values : {parts.key_values, parts.distance_values})
        for (const NodeId id : values)
            uses = uses | folded.mod.dependence[id];
    return {.keys = static_cast<int>(parts.key_values.size()),
            .distances = static_cast<int>(parts.distance_values.size()),
            .by_batch = uses.has(Dependence::b),
            .by_head = uses.has(Dependence::h)};
}

} // namespace flexc::cuda
