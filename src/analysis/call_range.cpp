#include "analysis/call_range.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "analysis/interval.h"

namespace flexc::analysis {

using ir::NodeId;
using ir::Op;

namespace {

bool is_position(Op op) {
    return op == Op::b || op == Op::h || op == Op::h_kv || op == Op::q_idx || op == Op::kv_idx;
}

// Whether interval arithmetic over integers knows the node's range from those of its operands.
bool is_arithmetic(const ir::Node& node) {
    if (ir::info(node.op).is_leaf() || node.type != ir::Type::integer) return false;
    switch (node.op) {
    case Op::read:
    case Op::sum:
    case Op::counter:
    case Op::real_to_int: return false;
    default: return true;
    }
}

class CallRanges {
  public:
    CallRanges(const ir::Program& program, std::span<const NodeId> roots, const CallValues& values)
        : values_(values) {
        for (const NodeId id : ir::reachable(program.graph, roots))
            known_[id] = found(program.graph[id]);
    }

    Interval of(NodeId root) const { return known_.at(root); }
    Interval of(const ir::Dim& dim) const {
        const std::int64_t extent = dim.is_constant() ? dim.constant : values_.sizes[dim.size];
        return {extent, extent};
    }

  private:
    Interval found(const ir::Node& node) const {
        switch (node.op) {
        case Op::const_int: return {node.integer, node.integer};
        case Op::b: return values_.b;
        case Op::h: return values_.h;
        case Op::h_kv: return values_.h_kv;
        case Op::q_idx: return values_.q;
        case Op::kv_idx: return values_.kv;
        case Op::size: return of(ir::Dim{.size = node.symbol});
        case Op::param: return values_.params[node.symbol];
        default: break;
        }
        if (!is_arithmetic(node)) return kAny;
        std::vector<Interval> operands;
        operands.reserve(node.operands.size());
        for (const NodeId operand : node.operands)
            operands.push_back(known_.at(operand));
        return transfer(node.op, operands);
    }

    const CallValues& values_;
    std::unordered_map<NodeId, Interval> known_;
};

} // namespace

bool is_known_to_calls(const ir::Graph& graph, NodeId id) {
    std::unordered_set<NodeId> seen;
    std::vector<NodeId> left = {id};
    while (!left.empty()) {
        const NodeId next = left.back();
        left.pop_back();
        if (!seen.insert(next).second) continue;
        const ir::Node& node = graph[next];
        if (node.type != ir::Type::integer) continue; // a condition bounds nothing
        if (is_position(node.op) || node.op == Op::const_int || node.op == Op::size ||
            node.op == Op::param)
            continue;
        if (!is_arithmetic(node)) return false;
        left.insert(left.end(), node.operands.begin(), node.operands.end());
    }
    return true;
}

bool are_inside(const ir::Program& program, std::span<const NodeId> reads,
                const CallValues& values) {
    std::vector<NodeId> indices;
    for (const NodeId read : reads) {
        const ir::Node& node = program.graph[read];
        indices.insert(indices.end(), node.operands.begin(), node.operands.end());
    }
    const CallRanges ranges(program, indices, values);
    return std::ranges::all_of(reads, [&](NodeId read) {
        const ir::Node& node = program.graph[read];
        for (std::size_t i = 0; i < node.operands.size(); ++i) {
            const Interval index = ranges.of(node.operands[i]);
            const Interval extent = ranges.of(program.buffers[node.symbol].dims[i]);
            if (index.low < 0 || index.high >= extent.low) return false;
        }
        return true;
    });
}

} // namespace flexc::analysis
