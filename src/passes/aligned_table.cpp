#include "passes/aligned_table.h"

#include <algorithm>

#include "analysis/staircase.h"

namespace flexc::passes {

using analysis::Staircase;
using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

// What a value of keys gains from a tile's first key to each; nothing where tiles differ.
std::optional<std::vector<int>> gains_in_tile(const ir::Graph& graph, NodeId id, int key_tile) {
    std::vector<int> gains(static_cast<std::size_t>(key_tile));
    if (id == kNoNode) return gains;
    const auto steps = Staircase::of(graph, id, Op::kv_idx);
    if (!steps) return {};
    for (int key = 0; key < key_tile; ++key) {
        const auto gain = steps->gain(key_tile, 0, key);
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

std::optional<AlignedTable> aligned(const ir::Graph& graph, const StagedTable& table,
                                    int key_tile) {
    const AddressParts& parts = table.split.parts;
    if (parts.key == kNoNode || parts.rest != kNoNode || table.entries == 0) return {};
    const auto gains = gains_in_tile(graph, parts.key, key_tile);
    if (!gains) return {};
    AlignedTable result;
    result.key_step = (*gains)[1];
    for (int key = 0; key < key_tile; ++key) {
        const int gain = (*gains)[static_cast<std::size_t>(key)], in_group = key % result.kGroup;
        if (in_group == 0)
            result.groups.push_back(gain);
        else if (gain != result.groups.back() + in_group * result.key_step)
            return {};
    }
    result.row_step = row_step(graph, parts.query);
    for (const AddressSplit::Index& index : table.split.indices) {
        const auto of_index = gains_in_tile(graph, index.parts.key, key_tile);
        if (!of_index) return {};
        const auto [least, most] = std::ranges::minmax(*of_index);
        result.reaches.push_back({least, most});
    }
    return result;
}

} // namespace

std::optional<std::vector<AlignedTable>> aligned_tables(const Mod& mod, const StagedTables& staged,
                                                        int key_tile) {
    std::vector<AlignedTable> tables;
    for (const StagedTable& table : staged.tables) {
        auto of_table = aligned(mod.program.graph, table, key_tile);
        if (!of_table) return {};
        tables.push_back(*std::move(of_table));
    }
    return tables;
}

} // namespace flexc::passes
