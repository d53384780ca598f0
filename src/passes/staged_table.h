// Reads of tables that a kernel keeps in shared memory (staged): a head's slice of each is copied
// ahead of its elements, and the address of an element is the sum of a part of the query, a part of
// the key and a rest.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/index_form.h"
#include "passes/address_split.h"
#include "passes/mod.h"

namespace flexc::passes {

struct StagedTable {
    ir::NodeId read = ir::kNoNode;
    AddressSplit split;
    // If not empty, the split is that of elements for which these hold, each of the query alone or
    // of the key alone. Elements of tiles that have others, too, compute what any element's is.
    analysis::Assumptions where;
    AddressSplit of_any;
    std::vector<bool> is_inside; // by index: no element's is outside of the slice
    // The parts of the query and the key, in bytes from the first float of the slice; kNoNode for
    // 0. The rest is split.parts.rest, in entries.
    ir::NodeId query_bytes = ir::kNoNode, key_bytes = ir::kNoNode;
    std::int64_t entries = 0; // of the slice; 0: known when tensors are

    // Whether an index may be outside the slice and can be checked once a tile, because it is a
    // number of the query plus a number of the key. Others are checked for each element.
    bool is_checked_by_tile(std::size_t i) const {
        return !is_inside[i] && split.indices[i].parts.rest == ir::kNoNode;
    }
    bool is_checked_by_element(std::size_t i) const {
        return !is_inside[i] && split.indices[i].parts.rest != ir::kNoNode;
    }
};

struct StagedTables {
    std::vector<StagedTable> tables;
    // Nodes from this one on were made for addresses. Sums and products among them may wrap,
    // because only the final sum is an index.
    ir::NodeId first_node = ir::kNoNode;
};

// Slices that are known to have more entries are not kept in shared memory.
inline constexpr std::int64_t kMostStagedEntries = 24576;

// Whether a kernel may keep what this reads in shared memory.
bool may_be_staged(const Mod& mod, ir::NodeId read);
// Returns the tables that these roots read for each element. Adds nodes to the mod's graph and
// finds its facts again.
StagedTables stage_tables(Mod& mod, const std::vector<ir::NodeId>& roots);

} // namespace flexc::passes
