// A thread's elements of a tile of scores, as the program sees them: their positions, and what was
// computed or staged for them before.
#pragma once

#include "common/place.cuh"
#include "sm90/aligned_tables.cuh"
#include "sm90/forward_tabulated.cuh"
#include "sm90/fragment.cuh"
#include "sm90/logit_form.cuh"
#include "sm90/shifted_reads.cuh"

namespace sm90 {

class ScoreElements {
  public:
    // first_row: the thread's first row; its second is eight behind it. tables: address of the
    // tables in shared memory.
    __device__ ScoreElements(const mod::Arguments& arguments, const HeadPlace& place,
                             const SequenceLength& length, int first_row, int lane, unsigned tables)
        : arguments_(arguments), place_(place), length_(length), first_column_(lane % 4 * 2),
          tables_(tables) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            q_[r] = length.q_idx(first_row + 8 * r);
            rows_[r] = mod::at_row(arguments, place.launch, place.head, place.b, place.h,
                                   place.h_kv, q_[r]);
        }
    }

    __device__ const mod::Row (&rows() const)[2] { return rows_; }
    __device__ int first_column() const { return first_column_; } // in a tile of keys
    __device__ const Tables& tables() const { return tables_; }
    __device__ const Shifts& shifts() const { return shifts_; }
    __device__ const TabulatedTile& tabulated() const { return tabulated_; }

    // Called once, before check_tables().
    __device__ void find_tables() {
        tables_.find(
            [&](auto visit) { visit_column(0, [&](int, const mod::At& at) { visit(at); }); });
    }
    __device__ void check_tables(int first_key) {
        tables_.check_tile([&](auto visit) { visit_lane_keys(first_key, visit); },
                           [&](auto visit) { visit_first_key(first_key, visit); },
                           first_key + mod::kKeyStep <= length_.keys());
    }
    // Called once, before find_reach_of_shifts(). first_row: the thread's first row of the tile of
    // queries.
    __device__ void find_shifts(const AttentionArguments& attention, int first_row) {
        const int row_of_tile = first_row % mod::kQueryTile;
        shifts_.find(attention, arguments_, place_, first_row - row_of_tile, row_of_tile,
                     first_column_);
    }
    __device__ void find_reach_of_shifts(int first_key) { shifts_.find_reach(first_key); }
    // stage: where what is copied of shifted reads of these keys is in shared memory.
    __device__ void use_shifts(unsigned stage) { shifts_.use(stage); }
    // Calls visit(source, reach), which say from where elements of the tile read.
    template <typename Visit> __device__ void with_sources(Visit visit) {
        tables_.with_source(
            [&](auto source) { shifts_.with_reach([&](auto reach) { visit(source, reach); }); });
    }
    // Sets where what is tabulated for a tile is in shared memory. row: the thread's first, in the
    // tile of queries.
    __device__ void find_tabulated(unsigned slices, int row) {
        tabulated_.find(slices, row, first_column_);
    }
    // Loads what the j-th column and those beside it need; called in order.
    __device__ void load_tabulated(int j) {
        if (kHasTabulated && j % 2 == 0) tabulated_.load(j / 2);
    }

    template <typename R> __device__ void load_shifts(R reach, int j) { shifts_.load(reach, j); }
    template <typename Source> __device__ void load_tables(Source source, int j) {
        tables_.load(source, j);
    }

    // Calls visit(r, at) for the thread's rows and a key. Memory is read within the tensors only.
    template <typename Visit> __device__ void visit_column(int position, Visit visit) const {
        visit_rows(position, [](int) { return TabulatedTile::Values{}; }, visit);
    }
    // The same for the j-th column from first_key on, with what was computed before.
    template <typename Visit>
    __device__ void visit_element(int first_key, int j, Visit visit) const {
        visit_rows(
            first_key + first_column_ + column_of(j), [&](int r) { return tabulated_.of(r, j); },
            visit);
    }
    // Calls visit(at) for something that changes neither with rows nor with keys.
    template <typename Visit> __device__ void visit_head(Visit visit) const {
        const mod::Column none{};
        visit(mod::At{arguments_, place_.launch, place_.head, rows_[0], none, place_.b, place_.h,
                      place_.h_kv, q_[0], 0});
    }
    // Calls visit(at) for a row and a column that are not known when the kernel is compiled, so
    // that they name no register.
    template <typename Visit>
    __device__ float visit_one(int first_key, int j, int r, Visit visit) const {
        const int column = column_of(j);
        const int kv = length_.kv_idx(first_key + first_column_ + column);
        const mod::Column of_key = column_at(kv);
        const mod::Row row = r == 0 ? rows_[0] : rows_[1];
        unsigned tables[mod::StagedTables::kCount ? mod::StagedTables::kCount : 1];
#pragma unroll
        for (int table = 0; table < mod::StagedTables::kCount; ++table)
            tables[table] = r == 0 ? tables_.of_row(0)[table] : tables_.of_row(1)[table];
        const TabulatedTile::KeyValues values = tabulated_.of_key(column);
        const mod::At at{arguments_, place_.launch, place_.head,
                         row,        of_key,        place_.b,
                         place_.h,   place_.h_kv,   r == 0 ? q_[0] : q_[1],
                         kv,         values.of_key, nullptr,
                         tables};
        return visit(at);
    }

    // Returns whether the keys end before the j-th column, asked once for the few columns whose
    // reads may be in flight together. Where three warpgroups share a block's registers, what comes
    // from shared memory instead takes too many at once, too.
    __device__ bool ends_before(int first_key, int j) const {
        constexpr int kGroup = 4;
        constexpr bool kHasFewRegisters = mod::kQueryTile > 128;
        constexpr bool kGroups =
            kForm.reads_keys || (kHasFewRegisters && kForm.uses_reads_of_keys);
        return kGroups && j % kGroup == 0 && first_key + 4 * j >= length_.keys();
    }

  private:
    __device__ mod::Column column_at(int kv) const {
        return mod::at_column(arguments_, place_.launch, place_.head, place_.b, place_.h,
                              place_.h_kv, kv);
    }
    template <typename Find, typename Visit>
    __device__ void visit_rows(int position, Find values_of, Visit visit) const {
        const int inside = kForm.reads_keys ? min(position, length_.keys() - 1) : position;
        const int kv = inside + static_cast<int>(length_.kv_offset());
        // Lets the compiler make shifts and masks of quotients and remainders.
        if constexpr ((mod::KeyIndex2d::kWidth > 0)) __builtin_assume(kv >= 0);
        const mod::Column column = column_at(kv);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const TabulatedTile::Values values = values_of(r);
            visit(r, mod::At{arguments_, place_.launch, place_.head, rows_[r], column, place_.b,
                             place_.h, place_.h_kv, q_[r], kv, values.of_key, values.of_distance,
                             tables_.of_row(r), nullptr, shifts_.of_row(r), tables_.loaded(r)});
        }
    }
    // Calls visit(at) for the tile's first key, with one of the thread's rows.
    template <typename Visit> __device__ void visit_first_key(int first_key, Visit visit) const {
        const int kv = length_.kv_idx(first_key);
        const mod::Column column = column_at(kv);
        visit(mod::At{arguments_, place_.launch, place_.head, rows_[0], column, place_.b, place_.h,
                      place_.h_kv, q_[0], kv});
    }
    // Calls visit(at) for the lane's keys of those from first_key on, with one of its rows.
    template <typename Visit> __device__ void visit_lane_keys(int first_key, Visit visit) const {
        const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
        for (int key = 0; key < mod::kKeyStep; key += 32) {
            const int kv = length_.kv_idx(first_key + key + lane);
            const mod::Column column = column_at(kv);
            const TabulatedTile::KeyValues values = tabulated_.of_key(key + lane - first_column_);
            visit(mod::At{arguments_, place_.launch, place_.head, rows_[0], column, place_.b,
                          place_.h, place_.h_kv, q_[0], kv, values.of_key});
        }
    }

    const mod::Arguments& arguments_;
    const HeadPlace& place_;
    const SequenceLength length_;
    int q_[2];
    mod::Row rows_[2];
    int first_column_;
    Tables tables_;
    Shifts shifts_;
    TabulatedTile tabulated_;
};

} // namespace sm90
