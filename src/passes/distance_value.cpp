#include "passes/distance_value.h"

#include <algorithm>

#include "passes/cost.h"
#include "passes/gradient_sum.h"

namespace flexc::passes {

using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

// Estimated cost, in instructions, of loading a number instead of computing it.
constexpr int kLookup = 12;

} // namespace

bool is_of_distance(const Mod& mod, NodeId id) {
    return mod.place[id] == Place::element && mod.counters[id] == kNoNode && mod.of_distance[id];
}

std::vector<NodeId> distance_values(const Mod& mod) {
    if (!mod.program.is_dense()) return {};
    std::vector<NodeId> roots = {mod.score, mod.d_score};
    for (const ReadGradient& gradient : mod.gradients)
        if (gradient_sum(mod, gradient) != GradientSum::distance) roots.push_back(gradient.partial);
    std::vector<NodeId> values;
    ir::visit_from(mod.program.graph, roots, [&](NodeId id) {
        if (mod.program.graph[id].type != ir::Type::real || !is_of_distance(mod, id)) return true;
        // No part of it can cost more than the whole.
        if (costs_more(mod, id, kLookup)) values.push_back(id);
        return false;
    });
    std::ranges::sort(values);
    return values;
}

bool reads_elements_beside(const Mod& mod, const std::vector<NodeId>& roots,
                           const std::vector<NodeId>& values) {
    bool reads = false;
    ir::visit_from(mod.program.graph, roots, [&](NodeId id) {
        if (std::ranges::find(values, id) != values.end()) return false;
        reads = reads || (mod.program.graph[id].op == Op::read && mod.place[id] == Place::element);
        return !reads;
    });
    return reads;
}

} // namespace flexc::passes
