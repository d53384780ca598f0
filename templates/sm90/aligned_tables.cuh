// Tables in shared memory by which tiles of keys are aligned: an element's place is one number of
// the query and the tile, and a step that is known when the kernel is compiled.
#pragma once

#include "common/select.h"
#include "sm90/fragment.cuh"
#include "sm90/table_reads.cuh"

namespace sm90 {

// Of a thread's part of a tile, in bytes.
template <int kTable> struct AlignedSteps {
    using Read = mod::StagedTable<kTable>;

    // From the thread's first column to the j-th, in its first row.
    static constexpr __device__ int of(int j) {
        return Read::group(j / 2) + j % 2 * Read::kKeyStep;
    }
    // A column before the j-th whose place in the first row is that of the j-th in the second; -1
    // where there is none.
    static constexpr __device__ int same(int j) {
        if (Read::kHasRowStep)
            for (int other = j % 2; other < j; other += 2)
                if (of(other) == of(j) + Read::kRowStep) return other;
        return -1;
    }
};

class AlignedTables {
  public:
    // memory: of the tables, in shared memory.
    explicit __device__ AlignedTables(unsigned memory) : memory_(memory) {}

    // As TableReads does; any key is the first that there is.
    template <typename VisitRows> __device__ void find(VisitRows visit_rows) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        int row = 0;
        indices_ = IndicesFrom<0>{};
        rows_are_inside_ = true;
        visit_rows([&](const mod::At& at) {
            // Rows past the end have the last one's place, and then are not behind a multiple.
            const int first = at.q - lane / 4 - kRowStep * row;
            rows_are_inside_ = rows_are_inside_ && first % kRows == 0 && at.kv % mod::kKeyTile == 0;
            indices_.visit([&](auto& table) {
                rows_are_inside_ = table.add_row(at, row == 0) && rows_are_inside_;
            });
            find_addresses(row, at);
            if (++row == 2) indices_.visit([&](auto& table) { table.reduce(at); });
        });
        rows_are_inside_ = __all_sync(0xffffffffu, rows_are_inside_);
    }
    // visit_first(visit): visit(at) at some row and the tile's first key. are_whole: none of its
    // keys is past the end.
    template <typename VisitKeys, typename VisitFirst>
    __device__ void look(VisitKeys, VisitFirst visit_first, bool are_whole) {
        is_aligned_ = rows_are_inside_ && are_whole;
        visit_first([&](const mod::At& at) {
            indices_.visit([&](const auto& table) { is_aligned_ &= table.holds_tile(at); });
            static_for<mod::kStagedTables>([&](auto table) {
                constexpr int kTable = decltype(table)::kValue;
                using Read = mod::StagedTable<kTable>;
                const int column = static_cast<int>(threadIdx.x) % 4 * 2;
                const unsigned step =
                    static_cast<unsigned>(Read::key_bytes(at) + column * Read::kKeyStep);
#pragma unroll
                for (int r = 0; r < 2; ++r)
                    first_[r][kTable] = addresses_[r][kTable] + step;
            });
        });
    }
    // visit(source) of the tile: a SourceOf.
    template <typename Visit> __device__ void with_source(Visit visit) const {
        if (is_aligned_)
            visit(SourceOf<TableSource::inside>{});
        else
            visit(SourceOf<TableSource::checked>{});
    }

    // Of the j-th column, in order; elements that are checked load by themselves.
    template <typename Source> __device__ void load(Source, int j) {
        if constexpr (Source::kSource != TableSource::inside) return;
        static_for<mod::kStagedTables>([&](auto table) {
            constexpr int kTable = decltype(table)::kValue;
            using Read = mod::StagedTable<kTable>;
            using Steps = AlignedSteps<kTable>;
            const auto read = [&](int r, int step) {
                return load_shared_float(first_[r][kTable] + static_cast<unsigned>(step));
            };
            of_first_row_[kTable][j] = loaded_[0][kTable] = read(0, Steps::of(j));
            if (const int same = Steps::same(j); same >= 0)
                loaded_[1][kTable] = of_first_row_[kTable][same];
            else if (Read::kHasRowStep)
                loaded_[1][kTable] = read(0, Steps::of(j) + Read::kRowStep);
            else
                loaded_[1][kTable] = read(1, Steps::of(j));
        });
    }
    // What that gave each table.
    __device__ const float* loaded(int r) const { return loaded_[r]; }
    // Where each table begins for a row.
    __device__ const unsigned* of_row(int row) const { return addresses_[row]; }

  private:
    static constexpr int kRows = 16, kRowStep = 8; // of a warp; from a thread's first to its second

    __device__ void find_addresses(int row, const mod::At& at) {
        static_for<mod::kStagedTables>([&](auto table) {
            constexpr int kTable = decltype(table)::kValue;
            unsigned address = mod::StagedTable<kTable>::row_address(at, memory_);
            keep(address);
            addresses_[row][kTable] = address;
        });
    }

    static constexpr int kTables = mod::kStagedTables ? mod::kStagedTables : 1;
    unsigned memory_, addresses_[2][kTables], first_[2][kTables];
    float loaded_[2][kTables], of_first_row_[kTables][kFragmentColumns];
    // rows_are_inside_: what queries alone give, and all of the warp are queries that there are.
    // Where a tile's first key, or the warp's first query, is at no multiple, no tile is aligned.
    bool rows_are_inside_ = true, is_aligned_ = false;
    IndicesFrom<0> indices_;
};

using Tables =
    Select<!kStagesTables, NoTableReads, Select<mod::kTablesAreAligned, AlignedTables, TableReads>>;

} // namespace sm90
