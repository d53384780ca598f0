// Where a thread of the forward kernel finds tables in shared memory, and whether its elements may
// read them there without a check of each index.
#pragma once

#include "common/select.h"
#include "common/static_for.cuh"
#include "sm90/forward_layout.cuh"
#include "sm90/logit_form.cuh"
#include "sm90/table_indices.cuh"

namespace sm90 {

// From where elements read what tables have.
// inside: shared memory, all that a tile reads is inside of the slices.
// checked: shared memory, with a check of each element's indices.
// memory: global memory, where slices have no room.
// exact: as checked, with nothing guessed.
// conditional: as inside, where some elements of an aligned tile use nothing of what is read.
enum class TableSource { inside, checked, memory, exact, conditional };

template <TableSource kValue> struct SourceOf {
    static constexpr TableSource kSource = kValue;
};

// Whether slices hold entries in the units of products, in which the element's addend is then, too.
constexpr bool kScalesTables =
    LogitForm::kStartsWithBias && LogitForm::kStartsWithTables && mod::StagedTables::kAddendScales;

struct NoTableReads {
    __device__ NoTableReads(unsigned) {}
    template <typename VisitRows> __device__ void find(VisitRows) {}
    template <typename VisitKeys, typename VisitFirst>
    __device__ void check_tile(VisitKeys, VisitFirst, bool) {}
    template <typename Visit> __device__ void with_source(Visit visit) const {
        visit(SourceOf<TableSource::memory>{});
    }
    template <typename Source> __device__ void load(Source, int) {}
    __device__ const float* loaded(int) const { return nullptr; }
    __device__ const unsigned* of_row(int) const { return nullptr; }
};

#ifdef FLEXC_HAS_TABLES

// Returns whether each table's slice of a head has room in the words that are kept for it.
__device__ inline bool tables_have_room(const mod::At& at) {
    bool have_room = true;
    static_for<mod::StagedTables::kCount>([&](auto table) {
        using Read = mod::StagedTable<decltype(table)::kValue>;
        have_room = have_room && Read::count(at) <= Read::kWords;
    });
    return have_room;
}

// For tables whose reads are always inside of the slices.
struct IndicesInside {
    static __device__ void add_row(const mod::At&) {}
    static __device__ void reduce(const mod::At&) {}
    template <typename VisitKeys> static __device__ void check_tile(VisitKeys) {}
    template <typename Visit> static __device__ void with_source(Visit visit) {
        visit(SourceOf<TableSource::inside>{});
    }
};
// Finds for each tile whether all that it reads is inside of the slices, at split addresses.
class IndicesOfTiles {
  public:
    __device__ void add_row(const mod::At& at) {
        rows_are_inside_ = rows_are_inside_ && mod::StagedTables::query_is_split(at);
        indices_.visit(
            [&](auto& table) { rows_are_inside_ = table.add_row(at) && rows_are_inside_; });
    }
    __device__ void reduce(const mod::At& at) {
        indices_.visit([&](auto& table) { table.reduce(at); });
        rows_are_inside_ = __all_sync(0xffffffffu, rows_are_inside_);
    }
    template <typename VisitKeys> __device__ void check_tile(VisitKeys visit_keys) {
        are_inside_ = rows_are_inside_;
        visit_keys([&](const mod::At& at) {
            are_inside_ = are_inside_ & mod::StagedTables::key_is_split(at);
            indices_.visit([&](const auto& table) { are_inside_ = are_inside_ & table.hold(at); });
        });
        are_inside_ = __all_sync(0xffffffffu, are_inside_);
    }
    template <typename Visit> __device__ void with_source(Visit visit) const {
        if (are_inside_)
            visit(SourceOf<TableSource::inside>{});
        else
            visit(SourceOf<TableSource::checked>{});
    }

  private:
    // rows_are_inside_: as far as no key is used.
    bool rows_are_inside_ = true, are_inside_ = false;
    IndicesFrom<0> indices_;
};
using TableIndices = Select<mod::StagedTables::kAreChecked, IndicesOfTiles, IndicesInside>;

// Slices have room, whatever the tensors' sizes.
struct TablesFit {
    static __device__ void find(const mod::At&) {}
    template <typename Visit>
    static __device__ void with_source(const TableIndices& indices, Visit visit) {
        indices.with_source(visit);
    }
};
// Whether slices have room depends on the tensors' sizes.
class TablesMayFit {
  public:
    __device__ void find(const mod::At& at) { have_room_ = tables_have_room(at); }
    template <typename Visit>
    __device__ void with_source(const TableIndices& indices, Visit visit) const {
        if (have_room_)
            indices.with_source(visit);
        else
            visit(SourceOf<TableSource::memory>{});
    }

  private:
    bool have_room_ = false;
};
using TableRoom = Select<mod::StagedTables::kHaveRoom, TablesFit, TablesMayFit>;

class TableReads {
  public:
    // memory: address of the tables in shared memory.
    explicit __device__ TableReads(unsigned memory) : memory_(memory) {}

    // Prepares the thread's two rows. visit_rows(visit) calls visit(at) for each of them, with any
    // key.
    template <typename VisitRows> __device__ void find(VisitRows visit_rows) {
        int row = 0;
        indices_ = TableIndices{};
        visit_rows([&](const mod::At& at) {
            if (row == 0) room_.find(at);
            indices_.add_row(at);
            find_addresses(row, at);
            if (++row == 2) indices_.reduce(at);
        });
    }
    // Checks a tile of keys. visit_keys(visit) calls visit(at) for some row and each of the lane's
    // keys; the warp's lanes together have all keys.
    template <typename VisitKeys, typename VisitFirst>
    __device__ void check_tile(VisitKeys visit_keys, VisitFirst, bool) {
        indices_.check_tile(visit_keys);
    }

    // Calls visit(source) with the tile's SourceOf.
    template <typename Visit> __device__ void with_source(Visit visit) const {
        room_.with_source(indices_, visit);
    }
    // Does nothing: elements load what they read by themselves.
    template <typename Source> __device__ void load(Source, int) {}
    __device__ const float* loaded(int) const { return nullptr; }
    // Returns the address at which each table begins for a row.
    __device__ const unsigned* of_row(int row) const { return addresses_[row]; }

  private:
    // Finds the address at which each table begins for a row. It is kept in a register: compilers
    // would add what is the same for all rows to each key's part instead.
    __device__ void find_addresses(int row, const mod::At& at) {
        static_for<mod::StagedTables::kCount>([&](auto table) {
            constexpr int kTable = decltype(table)::kValue;
            unsigned address = mod::StagedTable<kTable>::row_address(at, memory_);
            keep(address);
            addresses_[row][kTable] = address;
        });
    }

    unsigned memory_, addresses_[2][mod::StagedTables::kCount ? mod::StagedTables::kCount : 1];
    TableRoom room_;
    TableIndices indices_;
};

#endif

} // namespace sm90
