#include "analysis/distance.h"

#include <algorithm>

namespace flexc::analysis {

using ir::NodeId;

namespace {

// Whether the integer changes with q - kv alone, if the nodes of its form's rest do.
template <typename Is> bool is_of_difference(const AffineForm& form, Is is) {
    return form.q + form.kv == 0 && std::ranges::all_of(form.rest, is, &AffineForm::Term::node);
}

} // namespace

std::vector<bool> of_distance(const ir::Graph& graph, const std::vector<Dependence>& dependence,
                              const std::vector<AffineForm>& forms) {
    std::vector<bool> result;
    extend_of_distance(result, graph, dependence, forms);
    return result;
}

void extend_of_distance(std::vector<bool>& of_distance, const ir::Graph& graph,
                        const std::vector<Dependence>& dependence,
                        const std::vector<AffineForm>& forms) {
    const auto find = [&](NodeId id) {
        const ir::Node& node = graph[id];
        const Dependence uses = dependence[id];
        if (uses.has(Dependence::score)) return false;
        if ((uses.bits & kPositions) == 0) return true;
        const auto is = [&](NodeId part) { return static_cast<bool>(of_distance[part]); };
        const bool is_sum = node.type == ir::Type::integer &&
                            (forms[id].rest.size() != 1 || forms[id].rest[0].node != id);
        if (is_sum) return is_of_difference(forms[id], is);
        // q_idx < kv_idx, whose sides are no distances.
        if (ir::info(node.op).compares_integers())
            if (const auto difference = sum(forms[node.operands[0]], forms[node.operands[1]], -1))
                return is_of_difference(*difference, is);
        return std::ranges::all_of(node.operands, is);
    };
    for (auto id = static_cast<NodeId>(of_distance.size()); id < graph.size(); ++id)
        of_distance.push_back(find(id));
}

} // namespace flexc::analysis
