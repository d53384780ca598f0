// Tables in shared memory whose addresses are compile-time constants, apart from one number for
// each query and one for each tile of keys: they are read by digits of kv (such as the row and
// column of an image), in tiles that start where these digits do.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/index_form.h"
#include "passes/mod.h"
#include "passes/staged_table.h"

namespace flexc::passes {

// Distances in entries of the slice. Four lanes of a warp share the keys of a tile: each has two
// adjacent keys of every eight.
struct AlignedTable {
    static constexpr int kLanes = 4;
    static constexpr int kRows = 16; // queries of a warp, which start at a multiple of as many
    static constexpr std::size_t kMostProfiles = 4;
    // For one of a lane's columns, the distance from the first lane's key to that of each lane.
    // Lanes may differ because a digit starts between them.
    using Profile = std::array<int, kLanes>;
    std::vector<Profile> profiles;
    // For a lane's j-th column: the distance from the tile's first key to the first lane's key, and
    // the profile.
    struct Column {
        int step = 0, profile = 0;
    };
    std::vector<Column> columns;
    int least_step = 0, most_step = 0; // from the tile's first key to any
    std::optional<int> row_step; // from a query of the first half of a warp's to the eighth after
    // For each index of the read: the range of its increase from the tile's first key over all keys
    // of the tile.
    struct Reach {
        int least = 0, most = 0;
    };
    std::vector<Reach> reaches;
};

// Describes all of these tables for tiles of key_tile keys. key_step: distance from a tile's first
// key to the next one's; the last keys of a tile may belong to the next one. Nothing if some table
// is not aligned.
std::optional<std::vector<AlignedTable>> aligned_tables(const Mod& mod, const StagedTables& staged,
                                                        int key_tile, int key_step);

// Conditions under which an element uses the tables at all, as programs with class tokens have.
struct TableConditions {
    // All must hold; each depends on q alone or on kv alone.
    analysis::Assumptions of_queries, of_keys;
    // The first key from which on all conditions of keys hold; the largest int if no such key is
    // known.
    int keys_hold_from = INT32_MIN;
    bool any() const { return !of_queries.empty() || !of_keys.empty(); }
};
TableConditions table_conditions(const Mod& mod, const StagedTables& staged, ir::NodeId value);

// Whether the value is linear in the tables: multiplying them by a number multiplies the value by
// it.
bool scales_with_tables(const ir::Graph& graph, const StagedTables& staged, ir::NodeId value);

} // namespace flexc::passes
