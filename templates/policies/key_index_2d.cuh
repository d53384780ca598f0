// A 2-D key index: rows of kWidth keys, whole ones of which are in each tile. The program reads
// something by the row, kv // kWidth, alone, or by the column, kv % kWidth, alone.
#pragma once

namespace defaults {

struct KeyIndex2d {
    static constexpr int kWidth = 0; // 0: there is none

    // Hopper's backward. Reads by the row and by the column that are staged with each tile of
    // queries, and the size of the largest element that is read by the column.
    static constexpr int kRowReads = 0, kColumnReads = 0, kColumnBytes = 0;
    // Evenly spaced in memory: what is read or learned by the column, from one to the next; and all
    // that is read, by query and by row or column.
    static constexpr bool kColumnsAreLinear = true, kReadsAreLinear = false;
    // Some gradient is summed over the row's columns, or over a column's rows.
    static constexpr bool kSumsQuotients = false, kSumsRemainders = false;
    // Sums over columns have memory of their own in a block, and gradients of both are evenly
    // spaced from query to query.
    static constexpr bool kStagesSums = false;
};

// Of each such read:
//     using Element = flexc_bf16;
//     static __device__ const Element* address(const At&); // null outside the buffer
template <int kRead> struct RowRead;
template <int kRead> struct ColumnRead;

} // namespace defaults
