// Tables on chip whose places in the slice are known when a kernel is compiled, but for one number
// for each query and one for each tile of keys: those that are read by digits of kv, as row and
// column of an image, in tiles that start where these digits do.
#pragma once

#include <optional>
#include <vector>

#include "passes/mod.h"
#include "passes/staged_table.h"

namespace flexc::passes {

// In entries of the slice.
struct AlignedTable {
    static constexpr int kGroup = 8; // keys
    static constexpr int kRows = 16; // queries of a warp, which start at a multiple of as many
    std::vector<int> groups;         // from a tile's first key to each eighth
    int key_step = 0;                // from one key of these eight to the next
    std::optional<int> row_step; // from a query of the first half of a warp's to the eighth after
    // Of each index of the read: what keys of a tile give less than, and more than, its first.
    struct Reach {
        int least = 0, most = 0;
    };
    std::vector<Reach> reaches;
};

// Of all of these tables, in tiles of so many keys; nothing where one is not such.
std::optional<std::vector<AlignedTable>> aligned_tables(const Mod& mod, const StagedTables& staged,
                                                        int key_tile);

} // namespace flexc::passes
