#include "analysis/dependence.h"

#include <array>
#include <utility>

namespace flexc::analysis {

Dependence dependence_of_leaf(ir::Op op) {
    switch (op) {
    case ir::Op::score: return {Dependence::score};
    case ir::Op::q_len:
    case ir::Op::kv_len:
    case ir::Op::b: return {Dependence::b};
    case ir::Op::q_row: return {Dependence::b | Dependence::q};
    case ir::Op::kv_row: return {Dependence::b | Dependence::kv};
    case ir::Op::h:
    case ir::Op::h_kv: return {Dependence::h};
    case ir::Op::q_idx: return {Dependence::q};
    case ir::Op::kv_idx: return {Dependence::kv};
    default: return {};
    }
}

std::vector<Dependence> dependences(const ir::Graph& graph) {
    std::vector<Dependence> result;
    result.reserve(graph.size());
    extend_dependences(result, graph);
    return result;
}

void extend_dependences(std::vector<Dependence>& dependence, const ir::Graph& graph) {
    for (auto id = static_cast<ir::NodeId>(dependence.size()); id < graph.size(); ++id) {
        Dependence uses = dependence_of_leaf(graph[id].op);
        for (const ir::NodeId operand : graph[id].operands)
            uses = uses | dependence[operand];
        dependence.push_back(uses);
    }
}

std::string describe(Dependence dependence) {
    constexpr std::array<std::pair<Dependence::Bit, const char*>, 5> kNames = {
        {{Dependence::score, "score"},
         {Dependence::b, "b"},
         {Dependence::h, "h"},
         {Dependence::q, "q_idx"},
         {Dependence::kv, "kv_idx"}}};
    std::string text;
    for (auto [bit, name] : kNames)
        if (dependence.has(bit)) text += (text.empty() ? "" : ", ") + std::string(name);
    return text.empty() ? "nothing" : text;
}

} // namespace flexc::analysis
