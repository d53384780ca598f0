#include "passes/aligned_table.h"

#include <algorithm>
#include <span>

#include "analysis/staircase.h"

namespace flexc::passes {

using analysis::Dependence;
using analysis::Staircase;
using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

// Returns by how much a value that depends on keys increases from a tile's first key to each of its
// keys; nothing if tiles differ.
std::optional<std::vector<int>> gains_in_tile(const ir::Graph& graph, NodeId id, int key_step) {
    std::vector<int> gains(static_cast<std::size_t>(key_step));
    if (id == kNoNode) return gains;
    const auto steps = Staircase::of(graph, id, Op::kv_idx);
    if (!steps) return {};
    for (int key = 0; key < key_step; ++key) {
        const auto gain = steps->gain(key_step, 0, key);
        if (!gain) return {};
        gains[static_cast<std::size_t>(key)] = static_cast<int>(*gain);
    }
    return gains;
}

std::optional<int> row_step(const ir::Graph& graph, NodeId query) {
    constexpr int kHalf = AlignedTable::kRows / 2;
    if (query == kNoNode) return 0;
    const auto steps = Staircase::of(graph, query, Op::q_idx);
    if (!steps) return {};
    const auto first = steps->gain(AlignedTable::kRows, 0, kHalf);
    for (int row = 1; row < kHalf; ++row)
        if (steps->gain(AlignedTable::kRows, row, row + kHalf) != first) return {};
    if (!first) return {};
    return static_cast<int>(*first);
}

// Adds a lane's columns (two adjacent keys of each eight), given the increase from the tile's first
// key. False if they need too many profiles.
bool add_columns(AlignedTable& table, const std::vector<int>& gains) {
    constexpr int kGroup = 8, kNeighbours = 2;
    for (int group = 0; group < std::ssize(gains); group += kGroup)
        for (int key = group; key < group + kNeighbours; ++key) {
            const auto gain = [&](int lane) {
                return gains[static_cast<std::size_t>(key + kNeighbours * lane)];
            };
            AlignedTable::Profile profile{};
            for (int lane = 0; lane < AlignedTable::kLanes; ++lane)
                profile[static_cast<std::size_t>(lane)] = gain(lane) - gain(0);
            const auto known = std::ranges::find(table.profiles, profile);
            table.columns.push_back({gain(0), static_cast<int>(known - table.profiles.begin())});
            if (known == table.profiles.end()) table.profiles.push_back(profile);
        }
    return table.profiles.size() <= AlignedTable::kMostProfiles;
}

std::optional<AlignedTable> aligned(const ir::Graph& graph, const StagedTable& table, int key_tile,
                                    int key_step) {
    const AddressParts& parts = table.split.parts;
    if (parts.key == kNoNode || parts.rest != kNoNode || table.entries == 0) return {};
    auto gains = gains_in_tile(graph, parts.key, key_step);
    if (!gains) return {};
    // Keys past the step belong to the next tile, and what is read for them is unused: continue
    // with the last step, so that addresses stay near.
    while (std::ssize(*gains) < key_tile)
        gains->push_back(2 * gains->back() - *(gains->end() - 2));
    AlignedTable result;
    if (!add_columns(result, *gains)) return {};
    const auto [least_step, most_step] = std::ranges::minmax(*gains);
    result.least_step = least_step;
    result.most_step = most_step;
    result.row_step = row_step(graph, parts.query);
    for (const AddressSplit::Index& index : table.split.indices) {
        const auto of_index = gains_in_tile(graph, index.parts.key, key_step);
        if (!of_index) return {};
        const auto [least, most] = std::ranges::minmax(*of_index);
        result.reaches.push_back({least, most});
    }
    return result;
}

bool is_staged(const StagedTables& staged, NodeId id) {
    return std::ranges::find(staged.tables, id, &StagedTable::read) != staged.tables.end();
}

bool uses_tables(const ir::Graph& graph, const StagedTables& staged, NodeId value) {
    return std::ranges::any_of(ir::reachable(graph, std::span(&value, 1)),
                               [&](NodeId id) { return is_staged(staged, id); });
}

// Splits a condition that must equal `value` into conditions on q alone and on kv alone. What
// depends on both is left to the elements.
void add_condition(const Mod& mod, NodeId id, bool value, TableConditions& conditions) {
    const ir::Node& node = mod.program.graph[id];
    if (node.op == Op::bnot) return add_condition(mod, node.operands[0], !value, conditions);
    if (node.op == (value ? Op::band : Op::bor)) {
        add_condition(mod, node.operands[0], value, conditions);
        add_condition(mod, node.operands[1], value, conditions);
        return;
    }
    const Dependence uses = mod.dependence[id];
    if (uses.has(Dependence::score) || mod.counters[id] != kNoNode) return;
    if (uses.has(Dependence::q) != uses.has(Dependence::kv))
        (uses.has(Dependence::q) ? conditions.of_queries : conditions.of_keys)
            .emplace_back(id, value);
}

// Returns the first key from which on a comparison of kv_idx with a constant has this value;
// INT32_MAX if unknown.
int holds_from(const ir::Graph& graph, NodeId id, bool value) {
    const ir::Node& node = graph[id];
    if (node.operands.size() != 2) return INT32_MAX;
    const ir::Node &left = graph[node.operands[0]], &right = graph[node.operands[1]];
    const bool key_first = left.op == Op::kv_idx && right.op == Op::const_int;
    const bool key_last = right.op == Op::kv_idx && left.op == Op::const_int;
    if (!key_first && !key_last) return INT32_MAX;
    if (const std::int64_t number = key_first ? right.integer : left.integer;
        number < 0 || number >= INT32_MAX)
        return INT32_MAX;
    const int constant = static_cast<int>(key_first ? right.integer : left.integer);
    switch (node.op) {
    case Op::ieq: return value ? INT32_MAX : constant + 1;
    case Op::ine: return value ? constant + 1 : INT32_MAX;
    case Op::ilt: return value == key_first ? INT32_MAX : constant + (key_first ? 0 : 1);
    case Op::ile: return value == key_first ? INT32_MAX : constant + (key_first ? 1 : 0);
    default: return INT32_MAX;
    }
}

} // namespace

std::optional<std::vector<AlignedTable>> aligned_tables(const Mod& mod, const StagedTables& staged,
                                                        int key_tile, int key_step) {
    std::vector<AlignedTable> tables;
    for (const StagedTable& table : staged.tables) {
        auto of_table = aligned(mod.program.graph, table, key_tile, key_step);
        if (!of_table) return {};
        tables.push_back(*std::move(of_table));
    }
    return tables;
}

TableConditions table_conditions(const Mod& mod, const StagedTables& staged, NodeId value) {
    const ir::Graph& graph = mod.program.graph;
    TableConditions conditions;
    while (value != kNoNode && graph[value].op == Op::fselect) {
        const std::vector<NodeId>& operands = graph[value].operands;
        const bool first = uses_tables(graph, staged, operands[1]);
        if (first == uses_tables(graph, staged, operands[2])) break;
        add_condition(mod, operands[0], first, conditions);
        value = operands[first ? 1 : 2];
    }
    for (const auto& [id, holds] : conditions.of_keys)
        conditions.keys_hold_from =
            std::max(conditions.keys_hold_from, holds_from(graph, id, holds));
    return conditions;
}

bool scales_with_tables(const ir::Graph& graph, const StagedTables& staged, NodeId value) {
    if (is_staged(staged, value)) return true;
    const ir::Node& node = graph[value];
    if (node.op == Op::const_real) return node.real == 0;
    return node.op == Op::fselect && scales_with_tables(graph, staged, node.operands[1]) &&
           scales_with_tables(graph, staged, node.operands[2]);
}

} // namespace flexc::passes
