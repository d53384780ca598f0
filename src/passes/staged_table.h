// Reads of tables that a kernel keeps on chip: a head's slice of each is copied before its elements
// are computed, and an element finds its place in the slice as a sum of a part of the query, a part
// of the key and what is left.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/address_split.h"
#include "passes/mod.h"

namespace flexc::passes {

struct StagedTable {
    ir::NodeId read = ir::kNoNode;
    AddressSplit split;
    std::vector<bool> is_inside; // by index: no element's is outside of the slice
    // Bytes from the first float of the slice to the element's, of the query and of the key;
    // kNoNode for 0. What is left is split.parts.rest, in entries.
    ir::NodeId query_bytes = ir::kNoNode, key_bytes = ir::kNoNode;
    std::int64_t entries = 0; // of the slice; 0: known when tensors are

    // Whether an index may be outside of the slice: known of queries and keys together where it is
    // a number of the query plus one of the key, else of each element.
    bool is_checked_by_tile(std::size_t i) const {
        return !is_inside[i] && split.indices[i].parts.rest == ir::kNoNode;
    }
    bool is_checked_by_element(std::size_t i) const {
        return !is_inside[i] && split.indices[i].parts.rest != ir::kNoNode;
    }
};

struct StagedTables {
    std::vector<StagedTable> tables;
    // Nodes from this one on were made for the places. Sums and products among these may wrap: only
    // what they add up to is an index.
    ir::NodeId first_node = ir::kNoNode;
};

// Entries of slices that are known to be more are not kept on chip.
inline constexpr std::int64_t kMostStagedEntries = 24576;

// Whether a kernel may keep what this reads on chip.
bool may_be_staged(const Mod& mod, ir::NodeId read);
// The tables that the values of these roots read for each element. Adds nodes to the mod's graph
// and finds its facts again.
StagedTables stage_tables(Mod& mod, const std::vector<ir::NodeId>& roots);

} // namespace flexc::passes
