// Policy of a 2-D key index: rows of kWidth keys, whole ones of which are in each tile. The program
// reads something by the row, kv // kWidth, alone, or by the column, kv % kWidth, alone.
#pragma once

namespace defaults {

struct KeyIndex2d {
    static constexpr int kWidth = 0; // 0: there is none

    // Hopper's backward: number of reads by the row and by the column that are staged with each
    // tile of queries, and the size in bytes of the largest element that is read by the column.
    static constexpr int kRowReads = 0, kColumnReads = 0, kColumnBytes = 0;
    // Whether elements are evenly spaced in memory: of what is read or learned by the column, from
    // one column to the next; of all that is read, from query to query and from row to row or
    // column to column.
    static constexpr bool kColumnsAreLinear = true, kReadsAreLinear = false;
    // Whether some gradient is summed over the columns of a row, or over the rows of a column.
    static constexpr bool kSumsQuotients = false, kSumsRemainders = false;
    // Whether sums over columns have shared memory of their own in a block, and gradients of both
    // kinds are evenly spaced from query to query.
    static constexpr bool kStagesSums = false;
};

// Each such read has:
//     using Element = flexc_bf16;
//     static __device__ const Element* address(const At&); // null outside the buffer
template <int kRead> struct RowRead;
template <int kRead> struct ColumnRead;

} // namespace defaults
