#include "passes/staged_table.h"

#include <algorithm>

#include "passes/facts.h"
#include "passes/simplify.h"

namespace flexc::passes {

using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

bool fits_32_bits(const Mod& mod, NodeId id) {
    return id == kNoNode || mod.ranges.narrow[id] || mod.ranges.of_node[id].fits_32_bits();
}

// is_whole: by the index's own form; else each of its indices is a single part.
StagedTable staged(Mod& mod, NodeId id, bool is_whole) {
    StagedTable table{.read = id};
    const CapturedRead read = *captured_read(mod, id);
    if (is_whole) {
        table.split = split_address(mod, read, read.pieces[0]);
        for (const SliceIndex& index : read.pieces[0].slice)
            table.is_inside.push_back(index.is_inside);
    } else {
        table.split = split_by_dims(mod, read);
        const std::vector<bool>& proven = mod.ranges.in_range[id];
        for (std::size_t i = 0; i < table.split.indices.size(); ++i)
            table.is_inside.push_back((mod.dependence[mod.program.graph[id].operands[i]].bits &
                                       analysis::kInsideHead) == 0 ||
                                      (i < proven.size() && proven[i]));
    }
    Builder build(mod.program.graph);
    const auto in_bytes = [&](NodeId entries) {
        return entries == kNoNode ? kNoNode
                                  : build.apply(Op::imul, {entries, build.integer(sizeof(float))});
    };
    table.query_bytes = in_bytes(table.split.parts.query);
    table.key_bytes = in_bytes(table.split.parts.key);
    if (const auto count = build.integer_constant(table.split.count)) table.entries = *count;
    return table;
}

// Parts that are checked for queries and keys separately must each fit into 32 bits. Those of
// elements are checked before they are converted.
bool has_exact_parts(const Mod& mod, const StagedTable& table) {
    return std::ranges::all_of(table.split.indices, [&](const AddressSplit::Index& index) {
        const auto& [query, key, rest] = index.parts;
        return (query == kNoNode && key == kNoNode) ||
               (fits_32_bits(mod, query) && fits_32_bits(mod, key) && fits_32_bits(mod, rest));
    });
}

} // namespace

bool may_be_staged(const Mod& mod, NodeId read) {
    const ir::Node& node = mod.program.graph[read];
    if (node.op != Op::read || node.type != ir::Type::real) return false;
    const CapturedRead* captured = captured_read(mod, read);
    if (captured == nullptr || !is_table(*captured) || mod.place[read] != Place::element ||
        mod.counters[read] != kNoNode || mod.of_distance[read] ||
        mod.dependence[read].has(analysis::Dependence::score))
        return false;
    const Count& entries = captured->decisive().entries;
    return (!entries.is_constant() || entries.constant <= kMostStagedEntries) &&
           std::ranges::all_of(node.operands, [&](NodeId index) {
               return fits_32_bits(mod, index) || mod.place[index] == Place::element;
           });
}

StagedTables stage_tables(Mod& mod, const std::vector<NodeId>& roots) {
    StagedTables result{.tables = {}, .first_node = mod.program.graph.size()};
    std::vector<NodeId> reads;
    for (const NodeId id : ir::reachable(mod.program.graph, roots))
        if (may_be_staged(mod, id)) reads.push_back(id);
    if (reads.empty()) return result;
    for (const NodeId id : reads)
        result.tables.push_back(staged(mod, id, captured_read(mod, id)->is_whole()));
    find_facts(mod);
    const std::size_t known = mod.program.graph.size();
    for (StagedTable& table : result.tables)
        if (!has_exact_parts(mod, table)) table = staged(mod, table.read, false);
    if (mod.program.graph.size() != known) find_facts(mod);
    std::erase_if(result.tables, [&](const StagedTable& table) {
        return !has_exact_parts(mod, table) || table.entries > kMostStagedEntries;
    });
    return result;
}

} // namespace flexc::passes
