#include "passes/roots.h"

#include <string>

#include "passes/simplify.h"

namespace flexc::passes {

using ir::kNoNode;
using ir::NodeId;

std::vector<NodeId*> roots_of(Mod& mod) {
    std::vector<NodeId*> roots = {&mod.score, &mod.mask, &mod.sink, &mod.d_score,
                                  &mod.out_of_range};
    for (std::vector<ReadGradient>* gradients : {&mod.gradients, &mod.sink_gradients})
        for (ReadGradient& gradient : *gradients) {
            roots.push_back(&gradient.read);
            roots.push_back(&gradient.partial);
            roots.push_back(&gradient.sum_factor);
            roots.push_back(&gradient.choice);
            roots.push_back(&gradient.head_factor);
            roots.push_back(&gradient.element_factor);
        }
    for (NodeId& bound : mod.band.low)
        roots.push_back(&bound);
    for (NodeId& bound : mod.band.high)
        roots.push_back(&bound);
    for (NodeId& conjunct : mod.band.said)
        roots.push_back(&conjunct);
    if (mod.band.clamps)
        for (NodeId* bound : mod.band.clamps->nodes())
            roots.push_back(bound);
    return roots;
}

std::vector<NodeId> root_nodes(const Mod& mod) {
    std::vector<NodeId> nodes;
    for (const ir::NamedRoot& root : named_roots(mod))
        nodes.push_back(root.node);
    return nodes;
}

std::vector<ir::NamedRoot> named_roots(const Mod& mod) {
    std::vector<ir::NamedRoot> roots = {{"score", mod.score}, {"mask", mod.mask}};
    auto add = [&](std::string name, NodeId node) {
        if (node != kNoNode) roots.push_back({std::move(name), node});
    };
    add("sink", mod.sink);
    add("d_score", mod.d_score);
    for (std::size_t i = 0; i < mod.gradients.size(); ++i) {
        add("read_" + std::to_string(i), mod.gradients[i].read);
        add("d_read_" + std::to_string(i), mod.gradients[i].partial);
        add("sum_factor_" + std::to_string(i), mod.gradients[i].sum_factor);
        add("choice_" + std::to_string(i), mod.gradients[i].choice);
        add("head_factor_" + std::to_string(i), mod.gradients[i].head_factor);
        add("element_factor_" + std::to_string(i), mod.gradients[i].element_factor);
    }
    for (std::size_t i = 0; i < mod.sink_gradients.size(); ++i) {
        add("sink_read_" + std::to_string(i), mod.sink_gradients[i].read);
        add("d_sink_read_" + std::to_string(i), mod.sink_gradients[i].partial);
    }
    for (std::size_t i = 0; i < mod.band.low.size(); ++i)
        add("band_low_" + std::to_string(i), mod.band.low[i]);
    for (std::size_t i = 0; i < mod.band.high.size(); ++i)
        add("band_high_" + std::to_string(i), mod.band.high[i]);
    if (mod.band.clamps)
        for (std::size_t i = 0; const NodeId bound : mod.band.clamps->nodes())
            add("clamp_" + std::to_string(i++), bound);
    add("out_of_range", mod.out_of_range);
    return roots;
}

void substitute(Mod& mod,
                const std::function<std::optional<std::int64_t>(const ir::Node&)>& constant) {
    const ir::Graph old = std::move(mod.program.graph);
    ir::Graph graph;
    std::vector<NodeId> renamed(old.size(), kNoNode);
    for (NodeId id : ir::reachable(old, root_nodes(mod))) {
        const ir::Node& node = old[id];
        const auto value = constant(node);
        renamed[id] =
            value ? graph.integer(*value, node.span) : ir::copy_node(graph, node, renamed);
    }
    for (NodeId* root : roots_of(mod))
        if (*root != kNoNode) *root = renamed[*root];
    mod.program.graph = std::move(graph);
}

namespace {

void merge(Builder& build, std::vector<ReadGradient>& gradients) {
    std::vector<ReadGradient> merged;
    for (const ReadGradient& gradient : gradients) {
        ReadGradient* same = nullptr;
        for (ReadGradient& known : merged)
            if (known.read == gradient.read) same = &known;
        if (same != nullptr)
            same->partial = build.apply(ir::Op::fadd, {same->partial, gradient.partial});
        else if (!build.is_real(gradient.partial, 0))
            merged.push_back(gradient);
    }
    gradients = std::move(merged);
}

} // namespace

void merge_gradients(Mod& mod) {
    Builder build(mod.program.graph);
    merge(build, mod.gradients);
    merge(build, mod.sink_gradients);
}

} // namespace flexc::passes
