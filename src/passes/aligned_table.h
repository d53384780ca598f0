// Tables on chip whose places in the slice are known when a kernel is compiled, but for one number
// for each query and one for each tile of keys: those that are read by digits of kv, as row and
// column of an image, in tiles that start where these digits do.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/index_form.h"
#include "passes/mod.h"
#include "passes/staged_table.h"

namespace flexc::passes {

// In entries of the slice. Four lanes of a warp have the keys of a tile: of each eight, a lane has
// two neighbouring ones.
struct AlignedTable {
    static constexpr int kLanes = 4;
    static constexpr int kRows = 16; // queries of a warp, which start at a multiple of as many
    static constexpr std::size_t kMostProfiles = 4;
    // From the first lane's key to that of each lane, in one of a lane's columns: digits begin
    // between some lanes.
    using Profile = std::array<int, kLanes>;
    std::vector<Profile> profiles;
    // Of a lane's j-th column: from the tile's first key to the first lane's, and which profile.
    struct Column {
        int step = 0, profile = 0;
    };
    std::vector<Column> columns;
    int least_step = 0, most_step = 0; // from the tile's first key to any
    std::optional<int> row_step; // from a query of the first half of a warp's to the eighth after
    // Of each index of the read: what keys of a tile give less than, and more than, its first.
    struct Reach {
        int least = 0, most = 0;
    };
    std::vector<Reach> reaches;
};

// Of all of these tables, in tiles of so many keys, of which the last may be the next tile's too:
// key_step, from a tile's first key to the next one's. Nothing where a table is not such.
std::optional<std::vector<AlignedTable>> aligned_tables(const Mod& mod, const StagedTables& staged,
                                                        int key_tile, int key_step);

// What decides whether an element uses the tables at all, as class tokens have it.
struct TableConditions {
    // Under which it does, each of q alone or of kv alone.
    analysis::Assumptions of_queries, of_keys;
    // Those of keys, for this one and all after it; the largest number: no key is known to be one.
    int keys_hold_from = INT32_MIN;
    bool any() const { return !of_queries.empty() || !of_keys.empty(); }
};
TableConditions table_conditions(const Mod& mod, const StagedTables& staged, ir::NodeId value);

// Whether the value, multiplied by a number, is what it is of tables that have been multiplied.
bool scales_with_tables(const ir::Graph& graph, const StagedTables& staged, ir::NodeId value);

} // namespace flexc::passes
