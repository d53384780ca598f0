// Tables whose extents a call binds, and of which a kernel has memory for so many entries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "passes/key_kinds.h"
#include "passes/mod.h"
#include "plan/kernel.h"

namespace flexc::plan {

struct BoundTables {
    // The extents of the dims whose index varies within a head: a product of them all, and the
    // argument words of the others.
    struct Table {
        std::int64_t known = 1;
        std::vector<std::size_t> bound;
    };
    std::vector<Table> tables;
    std::int64_t most_entries = 0; // of all tables
};

// Returns the tables of a kernel: nothing, or one element.
std::vector<BoundTables> bound_tables(const passes::Mod& mod, const KernelConfig& config);
// Returns those whose entries are kinds, each for itself.
std::vector<BoundTables> bound_kinds(const passes::Mod& mod, const passes::KeyKinds& kinds);

} // namespace flexc::plan
