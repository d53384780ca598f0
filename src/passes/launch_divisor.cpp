#include "passes/launch_divisor.h"

#include <algorithm>
#include <cstdint>
#include <span>

namespace flexc::passes {

using ir::NodeId;
using ir::Op;

namespace {

// The limit of templates/common/reciprocal.h.
constexpr std::int64_t kMostDividend = INT32_MAX - 1;

// Whether the host computes the value as kernels do: from integers that it has, without reals.
bool is_known_to_host(const Mod& mod, NodeId id) {
    return std::ranges::all_of(ir::reachable(mod.program.graph, std::span(&id, 1)),
                               [&](NodeId part) {
                                   const ir::Node& node = mod.program.graph[part];
                                   return node.type != ir::Type::real && node.op != Op::read &&
                                          node.op != Op::sum && mod.place[part] == Place::launch;
                               });
}

} // namespace

bool divides_by_reciprocal(const Mod& mod, NodeId id) {
    const ir::Node& node = mod.program.graph[id];
    if ((node.op != Op::ifloordiv && node.op != Op::imod) || mod.ranges.narrow[id]) return false;
    const NodeId divisor = node.operands[1];
    const analysis::Interval dividend = mod.ranges.of_node[node.operands[0]];
    // Terms of a sum are computed in its place, which may be the launch.
    return mod.place[id] >= Place::row && mod.counters[id] == ir::kNoNode &&
           dividend.low >= -kMostDividend && dividend.high <= kMostDividend &&
           mod.program.graph[divisor].op != Op::const_int && is_known_to_host(mod, divisor);
}

std::vector<NodeId> launch_divisors(const Mod& mod) {
    std::vector<NodeId> divisors;
    for (const NodeId id : mod.order)
        if (divides_by_reciprocal(mod, id)) divisors.push_back(mod.program.graph[id].operands[1]);
    std::ranges::sort(divisors);
    const auto repeated = std::ranges::unique(divisors);
    divisors.erase(repeated.begin(), repeated.end());
    if (divisors.size() > kMaxLaunchDivisors) divisors.resize(kMaxLaunchDivisors);
    return divisors;
}

} // namespace flexc::passes
