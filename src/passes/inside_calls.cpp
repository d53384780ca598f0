#include "passes/inside_calls.h"

#include <algorithm>
#include <limits>
#include <span>

#include "analysis/call_range.h"
#include "passes/dense_bias.h"
#include "passes/facts.h"
#include "passes/shifted_read.h"
#include "passes/table_gradient.h"

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

std::vector<Mod> mods_of_lines(const Mod& mod) {
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

// Whether a table is read by one kind of the query and one of the key, and a call binds how many of
// them there are.
bool has_bound_kinds(const Mod& mod, NodeId read) {
    const CapturedRead* captured = captured_read(mod, read);
    if (captured == nullptr || !captured->is_whole() ||
        captured->read_class != ReadClass::pair_of_kinds || mod.place[read] != Place::element)
        return false;
    const ir::Node& node = mod.program.graph[read];
    const std::vector<std::uint32_t> dims = varying_dims(mod, read);
    bool is_bound = false;
    for (const std::uint32_t at : dims) {
        const ir::Dim& dim = mod.program.buffers[node.symbol].dims[at];
        const bool is_length = dim.size == ir::kQLen || dim.size == ir::kKvLen;
        if (is_length ||
            (mod.dependence[node.operands[at]].bits & analysis::kPositions) == analysis::kPositions)
            return false;
        is_bound |= !dim.is_constant();
    }
    return is_bound && dims.size() == 2;
}

std::vector<Mod> mods_of_few_kinds(const Mod& mod) {
    std::vector<NodeId> reads;
    for (const ReadGradient& gradient : mod.gradients)
        if (has_bound_kinds(mod, gradient.read)) reads.push_back(gradient.read);
    if (reads.empty()) return {};
    Mod few = mod;
    few.few_kinds = std::move(reads);
    return {std::move(few)};
}

} // namespace

bool are_few_kinds_summed(const Mod& inside) {
    return inside.few_kinds.empty() ||
           std::ranges::count(inside.few_kinds, read_by_kinds(inside)) != 0;
}

bool is_of_inside_calls(const Mod& mod) {
    return !mod.inside_reads.empty() || !mod.few_kinds.empty();
}

std::vector<Mod> mods_of_inside_calls(const Mod& mod) {
    if (!mod.program.is_dense()) return {};
    std::vector<Mod> mods = mods_of_lines(mod);
    return mods.empty() ? mods_of_few_kinds(mod) : mods;
}

} // namespace flexc::passes
