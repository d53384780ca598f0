#include "analysis/distance.h"

#include <algorithm>
#include <optional>

namespace flexc::analysis {

using ir::NodeId;
using ir::Op;

namespace {

class DistanceFinder {
  public:
    DistanceFinder(const ir::Graph& graph, const std::vector<Dependence>& dependence)
        : graph_(graph), dependence_(dependence) {}

    bool is_of_distance(NodeId id) {
        if (++work_ > kMaxWork || dependence_[id].has(Dependence::score)) return false;
        if (!uses_positions(id)) return true;
        if (const auto gain = sum_of_gains(id)) return *gain == 0;
        const ir::Node& node = graph_[id];
        return !node.operands.empty() && std::ranges::all_of(node.operands, [this](NodeId operand) {
            return is_of_distance(operand);
        });
    }

  private:
    // Nodes looked at: shared expressions are walked once for each use.
    static constexpr int kMaxWork = 2000;

    bool uses_positions(NodeId id) const {
        return dependence_[id].has(Dependence::q) || dependence_[id].has(Dependence::kv);
    }
    // Of an integer that is a sum of positions and of what uses none: what it gains when both
    // positions grow by one.
    std::optional<int> sum_of_gains(NodeId id) {
        if (++work_ > kMaxWork) return {};
        if (!uses_positions(id)) return 0;
        const ir::Node& node = graph_[id];
        if (node.op == Op::q_idx || node.op == Op::kv_idx) return 1;
        if (node.op != Op::iadd && node.op != Op::isub) return {};
        const auto x = sum_of_gains(node.operands[0]), y = sum_of_gains(node.operands[1]);
        if (!x || !y) return {};
        return node.op == Op::iadd ? *x + *y : *x - *y;
    }

    const ir::Graph& graph_;
    const std::vector<Dependence>& dependence_;
    int work_ = 0;
};

} // namespace

bool is_of_distance(const ir::Graph& graph, const std::vector<Dependence>& dependence, NodeId id) {
    return DistanceFinder(graph, dependence).is_of_distance(id);
}

} // namespace flexc::analysis
