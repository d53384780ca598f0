// Tables in shared memory by which tiles of keys are aligned: an element's place is one number of
// the query, the tile and the lane, and a step that is known when the kernel is compiled.
#pragma once

#include "common/select.h"
#include "sm90/fragment.cuh"
#include "sm90/table_reads.cuh"

namespace sm90 {

class TableReads;
template <int kCount> class AlignedTables;

#ifdef FLEXC_HAS_TABLES

// Steps in bytes between a thread's elements of a tile.
template <int kTable> struct AlignedSteps {
    using Read = mod::StagedTable<kTable>;

    // Returns an earlier column whose place in the first row is that of the j-th column in the
    // second row, or -1 if there is none.
    static constexpr __device__ int same(int j) {
        if (Read::kHasRowStep)
            for (int other = 0; other < j; ++other)
                if (Read::profile(other) == Read::profile(j) &&
                    Read::column_step(other) == Read::column_step(j) + Read::kRowStep)
                    return other;
        return -1;
    }
};

// For mods in which all elements use what is read from tables: there is nothing to find.
struct AllUseTables {
    static __device__ bool add_row(const mod::At&) { return true; }
    static __device__ void reduce() {}
    static __device__ bool are_known(const mod::At&) { return true; }
    static __device__ bool key_uses(const mod::At&) { return true; }
    static __device__ void set_keys_use(bool) {}
    static __device__ bool use() { return true; }
};
// Elements use what is read from tables only if conditions on their query and key hold.
class SomeUseTables {
  public:
    // Adds one of the thread's rows; returns whether its elements may use what is read.
    __device__ bool add_row(const mod::At& at) {
        const bool uses = mod::StagedTables::query_uses(at);
        rows_use_ = rows_use_ && uses;
        return uses;
    }
    __device__ void reduce() { rows_use_ = __all_sync(0xffffffffu, rows_use_); }
    // Returns whether it is known without a check of each key that all elements of the tile with
    // this first key use what is read.
    __device__ bool are_known(const mod::At& at) const {
        return rows_use_ && at.kv >= mod::StagedTables::kKeysHoldFrom;
    }
    static __device__ bool key_uses(const mod::At& at) { return mod::StagedTables::key_uses(at); }
    // keys_use: whether all keys of the tile use what is read.
    __device__ void set_keys_use(bool keys_use) { use_ = rows_use_ && keys_use; }
    __device__ bool use() const { return use_; }

  private:
    bool rows_use_ = true, use_ = false;
};
using UsesOfTables = Select<mod::StagedTables::kHaveConditions, SomeUseTables, AllUseTables>;

// A thread's reads from aligned tables. kCount: number of tables.
template <int kCount> class AlignedTables {
  public:
    // memory: address of the tables in shared memory.
    explicit __device__ AlignedTables(unsigned memory) : memory_(memory) {}

    // Prepares the thread's two rows, as TableReads::find() does. The elements that visit_rows
    // passes have the tensor's first key.
    template <typename VisitRows> __device__ void find(VisitRows visit_rows) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        int row = 0;
        indices_ = IndicesFrom<0>{};
        uses_ = UsesOfTables{};
        rows_are_inside_ = true;
        visit_rows([&](const mod::At& at) {
            // Rows past the end have the last one's place, and then are not behind a multiple.
            const int first = at.q - lane / 4 - kRowStep * row;
            rows_are_inside_ = rows_are_inside_ && (!kHaveRowSteps || first % kRows == 0) &&
                               at.kv % mod::kKeyStep == 0;
            if (uses_.add_row(at))
                indices_.visit(
                    [&](auto& table) { rows_are_inside_ = table.add_row(at) && rows_are_inside_; });
            find_addresses(row, at);
            if (++row == 2) indices_.visit([&](auto& table) { table.reduce(at); });
        });
        uses_.reduce();
        rows_are_inside_ = __all_sync(0xffffffffu, rows_are_inside_);
    }
    // Checks a tile of keys. visit_keys: as in TableReads; visit_first(visit) calls visit(at) for
    // some row and the tile's first key. are_whole: none of its keys is past the end.
    template <typename VisitKeys, typename VisitFirst>
    __device__ void check_tile(VisitKeys visit_keys, VisitFirst visit_first, bool are_whole) {
        is_aligned_ = rows_are_inside_;
        visit_first([&](const mod::At& at) {
            find_places(at);
            if (are_whole && uses_.are_known(at)) {
                uses_.set_keys_use(true);
                indices_.visit([&](const auto& table) { is_aligned_ &= table.holds_tile(at); });
            } else {
                check_keys(visit_keys);
            }
        });
    }
    // Calls visit(source) with the tile's SourceOf.
    template <typename Visit> __device__ void with_source(Visit visit) const {
        if (!is_aligned_)
            visit(SourceOf<TableSource::checked>{});
        else if (mod::StagedTables::kHaveConditions && !uses_.use())
            visit(SourceOf<TableSource::conditional>{});
        else
            visit(SourceOf<TableSource::inside>{});
    }

    // Loads the entries of the j-th column; columns come in order. Checked elements load their own.
    template <typename Source> __device__ void load(Source, int j) {
        if constexpr (Source::kSource == TableSource::checked) return;
        static_for<kCount>([&](auto table) {
            constexpr int kTable = decltype(table)::kValue;
            using Read = mod::StagedTable<kTable>;
            const int step = Read::column_step(j), profile = Read::profile(j);
            const auto read = [&](int r, int more) {
                return load_shared_float(first_[r][kTable][profile] +
                                         static_cast<unsigned>(step + more));
            };
            of_first_row_[kTable][j] = loaded_[0][kTable] = read(0, 0);
            if (const int same = AlignedSteps<kTable>::same(j); same >= 0)
                loaded_[1][kTable] = of_first_row_[kTable][same];
            else if (Read::kHasRowStep)
                loaded_[1][kTable] = read(0, Read::kRowStep);
            else
                loaded_[1][kTable] = read(1, 0);
        });
    }
    // Returns the entry that load() loaded from each table for row r.
    __device__ const float* loaded(int r) const { return loaded_[r]; }
    // Returns the address at which each table begins for a row.
    __device__ const unsigned* of_row(int row) const { return addresses_[row]; }

  private:
    static constexpr int kRows = 16, kRowStep = 8; // of a warp; from a thread's first to its second
    static constexpr int kMostProfiles = 4;

    template <int kTable = 0> static constexpr __device__ bool have_row_steps() {
        if constexpr (kTable < kCount)
            return mod::StagedTable<kTable>::kHasRowStep || have_row_steps<kTable + 1>();
        return false;
    }
    static constexpr bool kHaveRowSteps = have_row_steps();

    __device__ void find_addresses(int row, const mod::At& at) {
        static_for<kCount>([&](auto table) {
            constexpr int kTable = decltype(table)::kValue;
            unsigned address = mod::StagedTable<kTable>::row_address(at, memory_);
            keep(address);
            addresses_[row][kTable] = address;
        });
    }
    // Finds, for each row, table and profile, the lane's address from which column steps are
    // counted.
    __device__ void find_places(const mod::At& at) {
        const int lane = static_cast<int>(threadIdx.x) % 4;
        static_for<kCount>([&](auto table) {
            constexpr int kTable = decltype(table)::kValue;
            using Read = mod::StagedTable<kTable>;
            const unsigned first_key = static_cast<unsigned>(Read::key_bytes(at));
#pragma unroll
            for (int profile = 0; profile < Read::kProfiles; ++profile) {
                const unsigned step = static_cast<unsigned>(Read::lane_step(profile, lane));
#pragma unroll
                for (int r = 0; r < 2; ++r)
                    first_[r][kTable][profile] = addresses_[r][kTable] + first_key + step;
            }
        });
    }
    // Checks each key of a tile that has keys past the end, or keys that do not use what is read.
    // Indices of the latter are not checked, but what is read for them has to be memory of the
    // block.
    template <typename VisitKeys> __device__ void check_keys(VisitKeys visit_keys) {
        bool keys_use = true;
        visit_keys([&](const mod::At& at) {
            const bool uses = uses_.key_uses(at);
            keys_use = keys_use && uses;
            if (uses) indices_.visit([&](const auto& table) { is_aligned_ &= table.hold(at); });
        });
        is_aligned_ &= places_are_memory();
        is_aligned_ = __all_sync(0xffffffffu, is_aligned_);
        uses_.set_keys_use(__all_sync(0xffffffffu, keys_use));
    }
    __device__ bool places_are_memory() const {
        const unsigned begin = memory_ - kLayout.tables.memory;
        const unsigned end = memory_ + kLayout.tables.bytes;
        bool are_memory = true;
        static_for<kCount>([&](auto table) {
            constexpr int kTable = decltype(table)::kValue;
            using Read = mod::StagedTable<kTable>;
            const unsigned lane =
                static_cast<unsigned>(Read::lane_step(0, static_cast<int>(threadIdx.x) % 4));
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const unsigned first = first_[r][kTable][0] - lane;
                are_memory = are_memory &
                             (first + static_cast<unsigned>(Read::kLeastStep) >= begin) &
                             (first + static_cast<unsigned>(Read::kMostStep) < end);
            }
        });
        return are_memory;
    }

    unsigned memory_, addresses_[2][kCount], first_[2][kCount][kMostProfiles];
    float loaded_[2][kCount], of_first_row_[kCount][kFragmentColumns];
    // rows_are_inside_: the indices that queries give are inside, and all of the warp's rows exist.
    // It is false if a tile's first key, or the warp's first query, is at no multiple: then no tile
    // is aligned.
    bool rows_are_inside_ = true, is_aligned_ = false;
    IndicesFrom<0> indices_;
    UsesOfTables uses_;
};

#endif

using Tables = Select<
    !kStagesTables, NoTableReads,
    Select<mod::StagedTables::kAreAligned, AlignedTables<mod::StagedTables::kCount>, TableReads>>;

} // namespace sm90
