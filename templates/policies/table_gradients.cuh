// Policy of gradients of tables of which a tile meets few entries: these are summed in shared
// memory.
#pragma once

namespace defaults {

struct TableGradients {
    static constexpr int kCount = 0;
    // Further tables, numbered from kCount on, of which each has the same entries as one of those
    // and takes its sums: sums_of(table).
    static constexpr int kSharing = 0;
    static constexpr __device__ int sums_of(int table) { return table; }
    // 32-bit words of shared memory for each warp that sums; sums over parts of diagonals use them
    // too.
    static constexpr int kWords = 0;
    // Of Joint::partial, the one that generic kernels multiply dS by for the tables that are
    // weighted; -1 for none.
    static constexpr int kWeightedPartial = -1;
    static constexpr __device__ bool is_weighted(int) { return false; }
    // The table, read by kinds of queries and of keys, whose sums may be products; -1 for none.
    static constexpr int kOfKinds = -1;
    // Words for these products, of each such warp, behind those for sums of other tables.
    static constexpr int kKindWords = 0;
    // Entries of a head in all tables, where the threads that have dS add it to copies of them, and
    // the number of copies as a power of two; 0 where warps add tiles of it.
    static constexpr int kEntries = 0, kCopyShift = 0;
    // A call's extents decide how many of both there are; kEntries is the most.
    static constexpr bool kEntriesAreBound = false;
};

// Specialised by mod.cuh for each of the tables; templates/README.md has the members.
template <int kTable> struct TableGradient;

} // namespace defaults
