#include "passes/inside_calls.h"

#include <algorithm>
#include <limits>
#include <span>

#include "analysis/call_range.h"
#include "passes/dense_bias.h"
#include "passes/facts.h"
#include "passes/shifted_read.h"

namespace flexc::passes {

using ir::NodeId;

namespace {

// Whether tiles of a read could be copied, or its gradient be added to, line by line, if only each
// index were inside, and calls can tell that.
bool waits_for_calls(const Mod& mod, NodeId read) {
    const ir::Graph& graph = mod.program.graph;
    if (graph[read].op != ir::Op::read || mod.place[read] != Place::element) return false;
    const CapturedRead* captured = captured_read(mod, read);
    if (captured == nullptr || !captured->is_whole() ||
        (captured->read_class != ReadClass::dense_bias &&
         captured->read_class != ReadClass::shifted))
        return false;
    const std::vector<bool>& proven = mod.ranges.in_range[read];
    bool waits = false;
    for (std::size_t i = 0; i < proven.size(); ++i) {
        if (proven[i]) continue;
        const NodeId index = graph[read].operands[i];
        // Lines of shifted reads may begin and end outside of the buffer.
        if (is_copied_as_shifted(mod, read) && i + 1 == proven.size() &&
            !captured->decisive().shifts[i].is_clamped())
            continue;
        if (!analysis::is_known_to_calls(graph, index)) return false;
        waits = true;
    }
    return waits;
}

// Returns the reads of the score of which kernels can copy lines.
std::vector<NodeId> line_by_line(const Mod& mod) {
    std::vector<NodeId> reads;
    for (const NodeId id : ir::reachable(mod.program.graph, std::span(&mod.score, 1)))
        if (is_dense_bias(mod, id) || are_dense_indices(mod, id)) reads.push_back(id);
    Mod staged = mod;
    for (const ShiftedRead& shifted :
         stage_shifts(staged, {mod.score}, std::numeric_limits<std::size_t>::max()))
        reads.push_back(shifted.read);
    return reads;
}

} // namespace

std::vector<Mod> mods_of_inside_calls(const Mod& mod) {
    if (!mod.program.is_dense()) return {};
    std::vector<NodeId> reads;
    for (const NodeId id : ir::reachable(mod.program.graph, std::span(&mod.score, 1)))
        if (waits_for_calls(mod, id)) reads.push_back(id);
    if (reads.empty()) return {};
    Mod inside = mod;
    inside.inside_reads = std::move(reads);
    find_facts(inside);
    if (std::erase_if(inside.inside_reads, [&, lines = line_by_line(inside)](NodeId read) {
            return std::ranges::count(lines, read) == 0;
        }) != 0)
        find_facts(inside);
    if (inside.inside_reads.empty()) return {};
    return {std::move(inside)};
}

} // namespace flexc::passes
