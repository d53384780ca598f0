#include "plan/work.h"

#include <algorithm>
#include <vector>

#include "analysis/dependence.h"
#include "passes/cost.h"

namespace flexc::plan {

using ir::Op;

namespace {

// Whether these parts of a score mod, or they and the mask, have many operations.
bool are_large(const passes::Mod& mod, std::vector<ir::NodeId> roots) {
    const ir::Graph& graph = mod.program.graph;
    const auto count = [&] {
        return std::ranges::count_if(ir::reachable(graph, roots), [&](ir::NodeId id) {
            return graph[id].op == Op::read || !ir::info(graph[id].op).is_leaf();
        });
    };
    if (count() > kMostScoreOperations) return true;
    roots.push_back(mod.mask);
    return count() > kMostOperations;
}

// Those of what is computed at this place. is_wide(id): whether integers have 64 bits.
template <typename IsWide>
int instructions_at(passes::Place place, const passes::Mod& mod, std::span<const ir::NodeId> roots,
                    std::span<const ir::NodeId> known, IsWide is_wide) {
    const ir::Graph& graph = mod.program.graph;
    int instructions = 0;
    ir::visit_from(graph, {roots.begin(), roots.end()}, [&](ir::NodeId id) {
        if (std::ranges::count(known, id) != 0) return false;
        const Op op = graph[id].op;
        const bool is_computed = op == Op::read || !ir::info(op).is_leaf();
        if (is_computed && mod.place[id] == place)
            instructions += passes::instructions_of(op, passes::Precision::fast, is_wide(id));
        return true;
    });
    return instructions;
}

} // namespace

bool is_large(const passes::Mod& mod) {
    std::vector<ir::NodeId> roots = {mod.score};
    if (mod.d_score != ir::kNoNode) roots.push_back(mod.d_score);
    for (const passes::ReadGradient& gradient : mod.gradients)
        roots.push_back(gradient.partial);
    return are_large(mod, std::move(roots));
}

bool has_large_score(const passes::Mod& mod) { return are_large(mod, {mod.score}); }

int element_instructions(const passes::Mod& mod, std::span<const ir::NodeId> roots,
                         std::span<const ir::NodeId> known) {
    return instructions_at(passes::Place::element, mod, roots, known,
                           [](ir::NodeId) { return false; });
}

bool has_costly_derivative(const passes::Mod& mod) {
    constexpr int kFew = 8; // instructions
    return mod.gradients.empty() && !mod.dependence[mod.d_score].has(analysis::Dependence::score) &&
           element_instructions(mod, std::span(&mod.d_score, 1)) > kFew;
}

int row_instructions(const passes::Mod& mod, std::span<const ir::NodeId> roots) {
    return instructions_at(passes::Place::row, mod, roots, {},
                           [&](ir::NodeId id) { return !mod.ranges.narrow[id]; });
}

bool computes_wide_integers(const passes::Mod& mod, ir::NodeId root) {
    const ir::Graph& graph = mod.program.graph;
    return std::ranges::any_of(ir::reachable(graph, std::span(&root, 1)), [&](ir::NodeId id) {
        const ir::Node& node = graph[id];
        return node.type == ir::Type::integer && node.op != Op::read &&
               !ir::info(node.op).is_leaf() && mod.place[id] == passes::Place::element &&
               !mod.ranges.narrow[id];
    });
}

bool takes_roots(const passes::Mod& mod, std::span<const ir::NodeId> roots) {
    return std::ranges::any_of(ir::reachable(mod.program.graph, roots), [&](ir::NodeId id) {
        return mod.program.graph[id].op == Op::sqrt && mod.place[id] == passes::Place::element;
    });
}

int read_instructions(const passes::Mod& mod, std::span<const ir::NodeId> roots) {
    const auto reads =
        std::ranges::count_if(ir::reachable(mod.program.graph, roots), [&](ir::NodeId id) {
            return mod.program.graph[id].op == Op::read && mod.place[id] == passes::Place::element;
        });
    return static_cast<int>(reads) *
           passes::instructions_of(Op::read, passes::Precision::fast, false);
}

ScoreWork score_work(const passes::Mod& mod, passes::Precision most) {
    const ir::Graph& graph = mod.program.graph;
    const std::vector<passes::Precision> precisions = passes::precisions(mod, most);
    ScoreWork work;
    for (const ir::NodeId id : ir::reachable(graph, std::span(&mod.score, 1))) {
        const ir::Node& node = graph[id];
        if (mod.place[id] != passes::Place::element || ir::info(node.op).is_leaf()) continue;
        // Other quotients multiply by a reciprocal that is computed once for many elements.
        const bool divides =
            node.op == Op::fdiv && mod.place[node.operands[1]] == passes::Place::element;
        work.instructions += node.op == Op::fdiv && !divides
                                 ? 1
                                 : passes::instructions_of(node.op, precisions[id], false);
        if (node.op != Op::fdiv || divides)
            work.special_functions += passes::special_functions_of(node.op, precisions[id]);
    }
    return work;
}

bool is_long(const passes::Mod& mod, std::span<const ir::NodeId> roots) {
    return element_instructions(mod, roots) > kMostWrittenOut;
}

int copied_instructions(const passes::Mod& mod, int instructions) {
    // Copies for tiles with and without a turn at dq, and with a band, for tiles in which it hides
    // the keys of one warpgroup.
    const int copies = mod.band.found() ? 3 : 2;
    return copies * instructions;
}

} // namespace flexc::plan
