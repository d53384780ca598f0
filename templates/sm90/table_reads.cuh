// What a thread of the forward kernel knows of tables in shared memory: where they are, and whether
// its elements may read them there without looking at the buffers' ends.
#pragma once

#include "common/place.cuh"
#include "common/select.h"
#include "sm90/forward_layout.cuh"

namespace sm90 {

// Where elements read what tables have: in shared memory, where all that a tile reads is inside of
// the slices; there too, with a look at the ends of each element's; in memory, where slices have no
// room.
// exact: as checked, with nothing guessed.
enum class TableSource { inside, checked, memory, exact };

// Whether each table's slice of a head has room in the words that are kept for it.
template <int kTable = 0> __device__ inline bool tables_have_room(const mod::At& at) {
    if constexpr (kTable == mod::kStagedTables)
        return true;
    else
        return mod::StagedTable<kTable>::count(at) <= mod::StagedTable<kTable>::kWords &&
               tables_have_room<kTable + 1>(at);
}

// Of a table's indices that are a number of the query plus one of the key: what queries of the warp
// give, and after that the numbers of keys with which all of these are inside of the slice.
template <int kTable> struct TableRange {
    static constexpr int kIndices = mod::StagedTable<kTable>::kCheckedIndices;
    int least[kIndices ? kIndices : 1], most[kIndices ? kIndices : 1];
};
template <int kTable> struct TableRanges {
    TableRange<kTable> of_table;
    TableRanges<kTable + 1> rest;
};
template <> struct TableRanges<mod::kStagedTables> {};

template <TableSource kValue> struct SourceOf {
    static constexpr TableSource kSource = kValue;
};

struct NoTableReads {
    __device__ NoTableReads(unsigned) {}
    template <typename VisitRows> __device__ void find(VisitRows) {}
    template <typename VisitKeys> __device__ void look(VisitKeys) {}
    template <typename Visit> __device__ void with_source(Visit visit) const {
        visit(SourceOf<TableSource::memory>{});
    }
    __device__ const unsigned* of_row(int) const { return nullptr; }
};

class TableReads {
  public:
    // memory: of the tables, in shared memory.
    explicit __device__ TableReads(unsigned memory) : memory_(memory) {}

    // visit_rows(visit): visit(at) at each of the thread's rows, and any key.
    template <typename VisitRows> __device__ void find(VisitRows visit_rows) {
        int row = 0;
        rows_are_inside_ = true;
        visit_rows([&](const mod::At& at) {
            if (row == 0) have_room_ = tables_have_room(at);
            add_row<0>(ranges_, at, row == 0);
            find_addresses<0>(row, at);
            if (++row == 2) reduce<0>(ranges_, at);
        });
        if constexpr (mod::kTablesAreChecked)
            rows_are_inside_ = __all_sync(0xffffffffu, rows_are_inside_);
    }
    // Of a tile of keys. visit_keys(visit): visit(at) at some row and each of the lane's keys, all
    // of them by the warp's lanes together.
    template <typename VisitKeys> __device__ void look(VisitKeys visit_keys) {
        are_inside_ = rows_are_inside_;
        if constexpr (mod::kTablesAreChecked) {
            visit_keys(
                [&](const mod::At& at) { are_inside_ = are_inside_ & holds<0>(ranges_, at); });
            are_inside_ = __all_sync(0xffffffffu, are_inside_);
        }
    }

    // visit(source) of the tile: a SourceOf.
    template <typename Visit> __device__ void with_source(Visit visit) const {
        if (!mod::kTablesHaveRoom && !have_room_)
            visit(SourceOf<TableSource::memory>{});
        else if (!mod::kTablesAreChecked || are_inside_)
            visit(SourceOf<TableSource::inside>{});
        else if constexpr (mod::kTablesAreChecked)
            visit(SourceOf<TableSource::checked>{});
    }
    // Where each table begins for a row.
    __device__ const unsigned* of_row(int row) const { return addresses_[row]; }

  private:
    // Kept: compilers would add what is the same for all rows to each key's part instead.
    template <int kTable> __device__ void find_addresses(int row, const mod::At& at) {
        if constexpr (kTable < mod::kStagedTables) {
            unsigned address = mod::StagedTable<kTable>::row_address(at, memory_);
            keep(address);
            addresses_[row][kTable] = address;
            find_addresses<kTable + 1>(row, at);
        }
    }
    template <int kTable>
    __device__ void add_row(TableRanges<kTable>& ranges, const mod::At& at, bool is_first) {
        if constexpr (kTable < mod::kStagedTables) {
            using Read = mod::StagedTable<kTable>;
            constexpr int kIndices = TableRange<kTable>::kIndices;
            if constexpr (kIndices != 0) {
                int of_query[kIndices], entries[kIndices];
                Read::of_query(at, of_query);
                Read::entries_of_checked(at, entries);
                TableRange<kTable>& range = ranges.of_table;
#pragma unroll
                for (int i = 0; i < kIndices; ++i) {
                    if (!Read::uses_key(i))
                        rows_are_inside_ =
                            rows_are_inside_ && flexc_inside(of_query[i], entries[i]);
                    range.least[i] = is_first ? of_query[i] : min(range.least[i], of_query[i]);
                    range.most[i] = is_first ? of_query[i] : max(range.most[i], of_query[i]);
                }
            }
            add_row<kTable + 1>(ranges.rest, at, is_first);
        }
    }
    template <int kTable>
    static __device__ void reduce(TableRanges<kTable>& ranges, const mod::At& at) {
        if constexpr (kTable < mod::kStagedTables) {
            using Read = mod::StagedTable<kTable>;
            constexpr int kIndices = TableRange<kTable>::kIndices;
            if constexpr (kIndices != 0) {
                TableRange<kTable>& range = ranges.of_table;
                int entries[kIndices];
                Read::entries_of_checked(at, entries);
#pragma unroll
                for (int i = 0; i < kIndices; ++i) {
                    const bool is_of_both = Read::uses_query(i) && Read::uses_key(i);
                    const long long least =
                        is_of_both ? __reduce_min_sync(0xffffffffu, range.least[i]) : 0;
                    const long long most =
                        is_of_both ? __reduce_max_sync(0xffffffffu, range.most[i]) : 0;
                    range.least[i] = bounded(-least);
                    range.most[i] = bounded(entries[i] - 1 - most);
                }
            }
            reduce<kTable + 1>(ranges.rest, at);
        }
    }
    // Numbers of buffers may be as large as they have room.
    static __device__ int bounded(long long x) {
        return static_cast<int>(flexc_min(flexc_max(x, -0x80000000ll), 0x7fffffffll));
    }
    template <int kTable>
    static __device__ bool holds(const TableRanges<kTable>& ranges, const mod::At& at) {
        bool inside = true;
        if constexpr (kTable < mod::kStagedTables) {
            using Read = mod::StagedTable<kTable>;
            constexpr int kIndices = TableRange<kTable>::kIndices;
            if constexpr (kIndices != 0) {
                int of_key[kIndices];
                Read::of_key(at, of_key);
#pragma unroll
                for (int i = 0; i < kIndices; ++i)
                    if (Read::uses_key(i))
                        inside = inside & (of_key[i] >= ranges.of_table.least[i]) &
                                 (of_key[i] <= ranges.of_table.most[i]);
            }
            inside = inside & holds<kTable + 1>(ranges.rest, at);
        }
        return inside;
    }

    unsigned memory_, addresses_[2][mod::kStagedTables ? mod::kStagedTables : 1];
    // rows_are_inside_: indices of queries alone.
    bool have_room_ = false, rows_are_inside_ = false, are_inside_ = false;
    TableRanges<0> ranges_;
};

using Tables = Select<kStagesTables, TableReads, NoTableReads>;

} // namespace sm90
