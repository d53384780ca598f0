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

// How a read's address is split.
enum class Form : std::uint8_t {
    only_piece,     // as that is
    decisive_piece, // as that is, for elements that the piece has, if dims leave a rest
    dims            // each of its indices is a single part
};

bool varies_in_head(const Mod& mod, NodeId id) {
    return (mod.dependence[id].bits & analysis::kInsideHead) != 0;
}

// The piece, in a slice that all elements of a head share: the whole buffer in each dim whose index
// varies.
ReadPiece in_whole_slice(const Mod& mod, const CapturedRead& read, ReadPiece piece) {
    const ir::Node& node = mod.program.graph[read.read];
    for (std::size_t i = 0; i < node.operands.size(); ++i)
        if (varies_in_head(mod, node.operands[i]))
            piece.slice[i] = {.entries = mod.program.buffers[node.symbol].dims[i]};
        else
            piece.slice[i] = {.has_base = true};
    return piece;
}

StagedTable staged(Mod& mod, NodeId id, Form form) {
    StagedTable table{.read = id};
    const CapturedRead read = *captured_read(mod, id);
    const std::vector<NodeId> operands = mod.program.graph[id].operands;
    if (form == Form::only_piece) {
        table.split = split_address(mod, read, read.pieces[0]);
        for (const SliceIndex& index : read.pieces[0].slice)
            table.is_inside.push_back(index.is_inside);
    } else {
        const std::vector<bool>& proven = mod.ranges.in_range[id];
        for (std::size_t i = 0; i < operands.size(); ++i)
            table.is_inside.push_back(!varies_in_head(mod, operands[i]) ||
                                      (i < proven.size() && proven[i]));
        table.of_any = split_by_dims(mod, read);
        table.split = table.of_any;
        if (form == Form::decisive_piece && table.of_any.parts.rest != kNoNode) {
            table.where = read.decisive().where;
            table.split = split_address(mod, read, in_whole_slice(mod, read, read.decisive()));
        }
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
bool has_exact_parts(const Mod& mod, const AddressSplit& split) {
    return std::ranges::all_of(split.indices, [&](const AddressSplit::Index& index) {
        const auto& [query, key, rest] = index.parts;
        return (query == kNoNode && key == kNoNode) ||
               (fits_32_bits(mod, query) && fits_32_bits(mod, key) && fits_32_bits(mod, rest));
    });
}

// Whether each index of the piece is a number of the query plus one of the key, and 32 bits are
// enough for what was made for them. Sums and products may wrap; nothing else may.
bool is_split_in_two(const Mod& mod, const StagedTable& table, NodeId first_node) {
    const ir::Graph& graph = mod.program.graph;
    std::vector<NodeId> parts;
    for (const AddressSplit::Index& index : table.split.indices) {
        if (index.parts.rest != kNoNode) return false;
        for (const NodeId part : {index.parts.query, index.parts.key})
            if (part != kNoNode) parts.push_back(part);
    }
    return std::ranges::all_of(ir::reachable(graph, parts), [&](NodeId id) {
        const ir::Node& node = graph[id];
        const bool may_wrap = node.op == Op::iadd || node.op == Op::isub || node.op == Op::imul;
        return id < first_node || may_wrap ||
               (fits_32_bits(mod, id) && std::ranges::all_of(node.operands, [&](NodeId operand) {
                    return graph[operand].type != ir::Type::integer || fits_32_bits(mod, operand);
                }));
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
        result.tables.push_back(staged(
            mod, id, captured_read(mod, id)->is_whole() ? Form::only_piece : Form::decisive_piece));
    find_facts(mod);
    const std::size_t known = mod.program.graph.size();
    for (StagedTable& table : result.tables)
        if (!has_exact_parts(mod, table.split) ||
            (!table.where.empty() && !is_split_in_two(mod, table, result.first_node)))
            table = staged(mod, table.read, Form::dims);
    if (mod.program.graph.size() != known) find_facts(mod);
    std::erase_if(result.tables, [&](const StagedTable& table) {
        return !has_exact_parts(mod, table.split) || !has_exact_parts(mod, table.of_any) ||
               table.entries > kMostStagedEntries;
    });
    return result;
}

} // namespace flexc::passes
