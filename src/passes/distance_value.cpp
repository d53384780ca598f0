#include "passes/distance_value.h"

#include <algorithm>
#include <set>
#include <span>

#include "passes/cost.h"
#include "passes/dense_bias.h"
#include "passes/facts.h"
#include "passes/gradient_factor.h"
#include "passes/gradient_sum.h"
#include "passes/roots.h"
#include "passes/simplify.h"

namespace flexc::passes {

using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

bool is_element_read(const Mod& mod, NodeId id) {
    return mod.program.graph[id].op == Op::read && mod.place[id] == Place::element;
}

// Of an element. To have a number from memory instead costs about as much as kLookup, to add a
// product to a sum for a head about as much as kSum.
constexpr int kLookup = 12, kSum = 6;
bool is_dearer(const Mod& mod, NodeId id, int cheap) {
    int instructions = 0;
    for (const NodeId part : ir::reachable(mod.program.graph, std::span(&id, 1))) {
        if (mod.place[part] != Place::element) continue;
        if (is_element_read(mod, part)) return true;
        const Op op = mod.program.graph[part].op;
        if (!ir::info(op).is_leaf()) instructions += instructions_of(op, true, false);
    }
    return instructions > cheap;
}

bool is_distance_value(const Mod& mod, NodeId id) {
    return mod.program.graph[id].type == ir::Type::real && mod.place[id] == Place::element &&
           mod.counters[id] == kNoNode && mod.of_distance[id] && is_dearer(mod, id, kLookup);
}

// visit(node): whether to go on with its operands. Once for each node that is reached so.
template <typename Visit>
void walk(const ir::Graph& graph, const std::vector<NodeId>& roots, Visit visit) {
    std::set<NodeId> pending(roots.begin(), roots.end());
    // Users have larger ids than their operands.
    while (!pending.empty()) {
        const NodeId id = *pending.rbegin();
        pending.erase(std::prev(pending.end()));
        const std::vector<NodeId>& operands = graph[id].operands;
        if (visit(id)) pending.insert(operands.begin(), operands.end());
    }
}

bool is_of_head(const Mod& mod, NodeId id) {
    return mod.place[id] == Place::launch || mod.place[id] == Place::head;
}

// Their factors become quotients. A derivative near 0 becomes a number that is 0 beside any other
// gradient of the score, and by which sums can be divided.
void divide_by_derivative(Mod& mod, const std::vector<ReadGradient*>& divided) {
    constexpr double kLeast = 0x1p-100;
    Builder build(mod.program.graph);
    const NodeId derivative = mod.d_score, least = build.real(kLeast);
    const NodeId is_small = build.apply(Op::flt, {build.apply(Op::fabs, {derivative}), least});
    mod.d_score = build.apply(Op::fselect, {is_small, least, derivative});
    for (ReadGradient& gradient : mod.gradients)
        if (gradient.partial == derivative) gradient.partial = mod.d_score;
    for (ReadGradient* gradient : divided)
        gradient->sum_factor = build.apply(Op::fdiv, {gradient->partial, mod.d_score});
}

} // namespace

std::vector<NodeId> distance_values(const Mod& mod) {
    std::vector<NodeId> roots = {mod.score, mod.d_score};
    for (const ReadGradient& gradient : mod.gradients)
        if (gradient_sum(mod, gradient) != GradientSum::distance) roots.push_back(gradient.partial);
    std::vector<NodeId> values;
    walk(mod.program.graph, roots, [&](NodeId id) {
        const bool is_value = is_distance_value(mod, id);
        if (is_value) values.push_back(id);
        return !is_value;
    });
    std::ranges::sort(values);
    return values;
}

bool reads_elements_beside(const Mod& mod, const std::vector<NodeId>& roots,
                           const std::vector<NodeId>& values) {
    bool reads = false;
    walk(mod.program.graph, roots, [&](NodeId id) {
        if (std::ranges::find(values, id) != values.end()) return false;
        reads = reads || is_element_read(mod, id);
        return true;
    });
    return reads;
}

void find_sum_factors(Mod& mod, bool divides) {
    if (mod.gradients.empty()) return;
    // Of the warps that sum over diagonals there are none where they have other sums, or copy.
    const auto is_of_elements = [&](const ReadGradient& gradient) {
        return mod.place[gradient.read] == Place::element && !mod.of_distance[gradient.read];
    };
    const bool sums_heads = std::ranges::none_of(mod.gradients, is_of_elements) &&
                            dense_bias_of_score(mod) == kNoNode;
    const auto may_have_factor = [&](const ReadGradient& gradient) {
        if (gradient.is_of_row || is_gradient_of_score(mod, gradient)) return false;
        if (is_of_head(mod, gradient.read))
            return sums_heads && is_dearer(mod, gradient.partial, kSum);
        if (!is_of_elements(gradient)) return mod.place[gradient.read] == Place::element;
        const CapturedRead* read = captured_read(mod, gradient.read);
        return read != nullptr && is_table(*read);
    };
    const auto is_factor = [&](const ReadGradient& gradient, NodeId id) {
        return is_of_elements(gradient) ? is_of_head(mod, id) : bool{mod.of_distance[id]};
    };
    divides = divides && is_of_head(mod, mod.d_score);
    const std::size_t known = mod.program.graph.size();
    std::vector<ReadGradient*> divided;
    for (ReadGradient& gradient : mod.gradients) {
        if (!may_have_factor(gradient)) continue;
        gradient.sum_factor = gradient_factor(mod, gradient);
        if (gradient.sum_factor == kNoNode && divides && is_factor(gradient, gradient.partial))
            divided.push_back(&gradient);
    }
    if (!divided.empty()) divide_by_derivative(mod, divided);
    if (mod.program.graph.size() != known) {
        mod.order = ir::reachable(mod.program.graph, root_nodes(mod));
        find_facts(mod);
    }
    for (ReadGradient& gradient : mod.gradients)
        if (gradient.sum_factor != kNoNode && !is_factor(gradient, gradient.sum_factor))
            gradient.sum_factor = kNoNode;
}

} // namespace flexc::passes
