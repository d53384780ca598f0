// Stages what backward_index_2d_stage.cuh stages where it is evenly spaced in memory: from query to
// query, from row to row of the 2-D key index, and within a row.
#pragma once

#include "common/static_for.cuh"
#include "sm90/backward_index_2d_stage.cuh"

namespace sm90 {

// The reads of one head and tile of keys. Used by a whole warp.
class Index2dTables {
  public:
    __device__ Index2dTables(const AttentionArguments& attention, int first_key)
        : attention_(attention), last_query_(attention.q_len - 1),
          start_(first_key - first_key % kKeyWidth),
          last_row_(min(start_ / kKeyWidth + kIndex2dRows, rows_of(attention)) - 1 -
                    start_ / kKeyWidth) {}

    // Finds addresses and steps of all reads. This takes a while, so callers start first what does
    // not depend on it.
    __device__ void find(const mod::Arguments& arguments, const HeadPlace& place) {
        is_known_ = true;
        if (!mod::KeyIndex2d::kReadsAreLinear) return;
        is_inside_ = attention_.kv_len >= kKeyWidth;
        static_for<mod::KeyIndex2d::kRowReads>(
            [&](auto read) { find_rows<read.kValue>(arguments, place); });
        static_for<mod::KeyIndex2d::kColumnReads>(
            [&](auto read) { find_columns<read.kValue>(arguments, place); });
    }
    __device__ bool is_known() const { return is_known_; }
    // Returns false if something may be outside its buffer, or is not in whole pieces.
    __device__ bool is_inside() const { return mod::KeyIndex2d::kReadsAreLinear && is_inside_; }

    // Values by rows of the 2-D key index, of as many of a lane's queries as registers can hold.
    static constexpr int kBands = mod::kQueryTile / 32;
    static constexpr int kRowValues = mod::KeyIndex2d::kRowReads * kIndex2dRows;
    static constexpr int kHeldBands = kBands * kRowValues <= 8 ? kBands : 0;
    struct Rows {
        float of[kHeldBands > 0 ? kHeldBands : 1][kRowValues > 0 ? kRowValues : 1];
    };

    // Starts to read values by rows to registers; needs no memory of the stage.
    __device__ void read(Rows& rows, int tile_query) const {
#pragma unroll
        for (int band = 0; band < kHeldBands; ++band)
            read_rows(rows.of[band], tile_query + 32 * band);
    }
    // Arrives twice for each lane: for what it stored and for what it copies.
    __device__ void fill(Rows& rows, int tile_query, unsigned memory, Barrier full) const {
        static_for<mod::KeyIndex2d::kColumnReads>([&](auto read) {
            copy_columns<read.kValue>(memory + mod::KeyIndex2d::kRowReads * kRowReadBytes,
                                      tile_query);
        });
#pragma unroll(kHeldBands > 0 ? kBands : 1)
        for (int band = 0; band < kBands; ++band) {
            float(&values)[kRowValues > 0 ? kRowValues : 1] = rows.of[kHeldBands > 0 ? band : 0];
            if (kHeldBands == 0) read_rows(values, tile_query + 32 * band);
#pragma unroll
            for (int i = 0; i < kRowValues; ++i)
                store_shared_element(memory + (i * mod::kQueryTile + 32 * band + lane()) * 4,
                                     values[i]);
        }
        full.arrive();
        arrive_after_copies(full);
    }

  private:
    // Address of an evenly spaced read, and the bytes from one query, and from one row or column of
    // the 2-D key index, to the next.
    struct Table {
        unsigned long long first;
        int by_query, by_row;
        __device__ unsigned long long at(int query) const {
            return first + static_cast<long long>(by_query) * query;
        }
    };

    static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

    static __device__ int rows_of(const AttentionArguments& attention) {
        return (attention.kv_len + kKeyWidth - 1) / kKeyWidth;
    }

    // Returns the table that has these addresses at its corners: [first or last query][first key,
    // or that `count` steps behind it]. 0 stands for an address outside the buffer.
    __device__ Table table_of(const unsigned long long (&corners)[2][2], int count) {
        const auto step = [&](unsigned long long to, int steps) {
            const long long bytes = static_cast<long long>(to - corners[0][0]) / max(steps, 1);
            is_inside_ = is_inside_ && bytes == static_cast<int>(bytes);
            return static_cast<int>(bytes);
        };
        is_inside_ = is_inside_ && corners[0][0] != 0 && corners[0][1] != 0 && corners[1][0] != 0 &&
                     corners[1][1] != 0;
        return {corners[0][0], step(corners[1][0], last_query_), step(corners[0][1], count)};
    }
    // visit(at) returns the address of an element.
    template <typename Visit>
    __device__ Table table_between(const mod::Arguments& arguments, const HeadPlace& place, int key,
                                   int last_key, int count, Visit visit) {
        unsigned long long corners[2][2];
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < 2; ++j)
                corners[i][j] = reinterpret_cast<unsigned long long>(
                    visit_inside(attention_, arguments, place, i == 0 ? 0 : last_query_,
                                 j == 0 ? key : last_key, visit));
        return table_of(corners, count);
    }

    template <int kRead>
    __device__ void find_rows(const mod::Arguments& arguments, const HeadPlace& place) {
        rows_[kRead] =
            table_between(arguments, place, start_, start_ + last_row_ * kKeyWidth, last_row_,
                          [](const mod::At& at) { return mod::RowRead<kRead>::address(at); });
    }
    // Reads the values of the lane's query. query: the first of the warp's 32.
    __device__ void read_rows(float (&values)[kRowValues > 0 ? kRowValues : 1], int query) const {
        static_for<mod::KeyIndex2d::kRowReads>(
            [&](auto read) { read_row<read.kValue>(values, query); });
    }
    template <int kRead>
    __device__ void read_row(float (&values)[kRowValues > 0 ? kRowValues : 1], int query) const {
        const unsigned long long first = rows_[kRead].at(min(query + lane(), last_query_));
#pragma unroll
        for (int i = 0; i < kIndex2dRows; ++i)
            values[kRead * kIndex2dRows + i] =
                flexc_to_float(*reinterpret_cast<const RowElement<kRead>*>(
                    first + static_cast<long long>(rows_[kRead].by_row) * min(i, last_row_)));
    }

    template <int kRead> static constexpr int kElementBytes = sizeof(ColumnElement<kRead>);
    template <int kRead> static constexpr int kBytes = kKeyWidth * kElementBytes<kRead>;
    template <int kRead> static constexpr int kPiece = kBytes<kRead> % 16 == 0 ? 16 : 4;

    template <int kRead>
    __device__ void find_columns(const mod::Arguments& arguments, const HeadPlace& place) {
        const Table table =
            table_between(arguments, place, 0, kKeyWidth - 1, kKeyWidth - 1,
                          [](const mod::At& at) { return mod::ColumnRead<kRead>::address(at); });
        is_inside_ = is_inside_ && table.by_row == kElementBytes<kRead> &&
                     kBytes<kRead> % kPiece<kRead> == 0 && table.first % kPiece<kRead> == 0 &&
                     table.by_query % kPiece<kRead> == 0;
        columns_[kRead] = table;
    }
    template <int kRead> __device__ void copy_columns(unsigned memory, int tile_query) const {
        constexpr int kPieces = kBytes<kRead> / kPiece<kRead>; // of a query
#pragma unroll 4
        for (int i = lane(); i < mod::kQueryTile * kPieces; i += 32) {
            const int query = i / kPieces, offset = i % kPieces * kPiece<kRead>;
            const unsigned long long from =
                columns_[kRead].at(min(tile_query + query, last_query_)) +
                static_cast<unsigned>(offset);
            const unsigned to = memory + kRead * kColumnReadBytes + query * kColumnPitch + offset;
            copy_piece_async<kPiece<kRead>>(to, reinterpret_cast<const void*>(from));
        }
    }

    const AttentionArguments& attention_;
    const int last_query_;
    const int start_, last_row_; // of the tile: where its first row starts; which row is the last
    bool is_known_ = false, is_inside_ = false;
    Table rows_[mod::KeyIndex2d::kRowReads > 0 ? mod::KeyIndex2d::kRowReads : 1];
    Table columns_[mod::KeyIndex2d::kColumnReads > 0 ? mod::KeyIndex2d::kColumnReads : 1];
};

} // namespace sm90
