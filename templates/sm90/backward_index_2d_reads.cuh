// Loads, for a consumer thread, the values that backward_index_2d_stage.cuh stages: those of two
// neighbouring queries and of the thread's two keys, which are eight apart.
#pragma once

#include "common/select.h"
#include "common/static_for.cuh"
#include "sm90/backward_index_2d_stage.cuh"

namespace sm90 {

// Nothing is staged.
struct NoIndex2dReads {
    using Values = float[2][2][1];

    __device__ NoIndex2dReads(int, int, int) {}
    static __device__ void use(unsigned) {}
    static __device__ void load(Values&, int) {}
};

__device__ inline float load_staged(float, unsigned from) {
    return __uint_as_float(load_shared_word(from));
}
template <typename E> __device__ inline float load_staged(E, unsigned from) {
    return flexc_to_float(E{load_shared_half(from)});
}

// Whether a warp's 16 keys, which start at a multiple of 16, are in one row of the 2-D key index.
constexpr bool kKeysAreInOneRow = kKeyWidth % 16 == 0;

// Loads what is read by the row for two queries, once for both keys.
struct OneRow {
    static __device__ void load(unsigned rows, const int (&row)[2], int pair,
                                float (&of_keys)[2][2]) {
        load_shared(rows + row[0] + 32 * pair, of_keys[0]);
        of_keys[1][0] = of_keys[0][0];
        of_keys[1][1] = of_keys[0][1];
    }
};
// Loads what is read by the row for two queries, for each key.
struct RowOfEachKey {
    static __device__ void load(unsigned rows, const int (&row)[2], int pair,
                                float (&of_keys)[2][2]) {
        load_shared(rows + row[0] + 32 * pair, of_keys[0]);
        load_shared(rows + row[1] + 32 * pair, of_keys[1]);
    }
};
using StagedRowsOfKeys = Select<kKeysAreInOneRow, OneRow, RowOfEachKey>;

// Loads what is read by the column element by element. columns: address of eight queries.
template <typename E> struct StagedColumns {
    static __device__ void load(unsigned columns, const int (&column)[2], int first_query,
                                float (&of_keys)[2][2]) {
#pragma unroll
        for (int side = 0; side < 2; ++side)
#pragma unroll
            for (int key = 0; key < 2; ++key)
                of_keys[key][side] =
                    load_staged(E{}, columns + (first_query + side) * kColumnPitch +
                                         column[key] * static_cast<int>(sizeof(E)));
    }
};
// Loads what is read by the column by a warp together: lanes provide the addresses of the queries'
// rows in a matrix of eight keys, and in that of the next eight.
template <typename E> struct StagedColumnMatrices {
    static __device__ void load(unsigned columns, const int (&column)[2], int,
                                float (&of_keys)[2][2]) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const int first_column = column[0] - lane / 4 + lane / 8 % 2 * 8;
        unsigned words[2];
        load_transposed(columns + lane % 8 * kColumnPitch + 2 * first_column, words);
#pragma unroll
        for (int key = 0; key < 2; ++key) {
            of_keys[key][0] = flexc_first(E{}, words[key]);
            of_keys[key][1] = flexc_second(E{}, words[key]);
        }
    }
};
template <typename E>
using StagedColumnsOfKeys =
    Select<sizeof(E) == 2 && kKeysAreInOneRow, StagedColumnMatrices<E>, StagedColumns<E>>;

class StagedIndex2dReads {
  public:
    static constexpr int kReads = mod::KeyIndex2d::kRowReads + mod::KeyIndex2d::kColumnReads;
    // [query][key][read], reads by the row first.
    using Values = float[2][2][kReads > 0 ? kReads : 1];

    // tile_key: the tile's first key. first_key: this thread's first, in the tensor. first_query:
    // this thread's first, in the tile.
    __device__ StagedIndex2dReads(int tile_key, int first_key, int first_query)
        : first_query_(first_query) {
        const int start = tile_key - tile_key % kKeyWidth;
#pragma unroll
        for (int key = 0; key < 2; ++key) {
            const int from_start = first_key + 8 * key - start;
            row_[key] = from_start / kKeyWidth * (4 * mod::kQueryTile) + 4 * first_query;
            column_[key] = from_start % kKeyWidth;
        }
    }

    __device__ void use(unsigned memory) { memory_ = memory; }

    // Loads the values of the two queries that are 8 * pair behind the thread's first two.
    __device__ void load(Values& values, int pair) const {
        load_rows(IndicesTo<mod::KeyIndex2d::kRowReads>{}, values, pair);
        load_columns(IndicesTo<mod::KeyIndex2d::kColumnReads>{}, values, pair);
    }

  private:
    template <int... kReads>
    __device__ void load_rows(Indices<kReads...>, Values& values, int pair) const {
        (load_row<kReads>(values, pair), ...);
    }
    template <int kRead> __device__ void load_row(Values& values, int pair) const {
        float of_keys[2][2];
        StagedRowsOfKeys::load(memory_ + kRead * kRowReadBytes, row_, pair, of_keys);
        put(values, kRead, of_keys);
    }
    template <int... kReads>
    __device__ void load_columns(Indices<kReads...>, Values& values, int pair) const {
        (load_column<kReads>(values, pair), ...);
    }
    template <int kRead> __device__ void load_column(Values& values, int pair) const {
        const unsigned columns = memory_ + mod::KeyIndex2d::kRowReads * kRowReadBytes +
                                 kRead * kColumnReadBytes + 8 * pair * kColumnPitch;
        float of_keys[2][2];
        StagedColumnsOfKeys<ColumnElement<kRead>>::load(columns, column_, first_query_, of_keys);
        put(values, mod::KeyIndex2d::kRowReads + kRead, of_keys);
    }
    static __device__ void put(Values& values, int read, const float (&of_keys)[2][2]) {
#pragma unroll
        for (int side = 0; side < 2; ++side)
#pragma unroll
            for (int key = 0; key < 2; ++key)
                values[side][key][read] = of_keys[key][side];
    }

    unsigned memory_;
    int row_[2], column_[2]; // offsets: in bytes, in columns
    int first_query_;
};

using Index2dReads = Select<kStagesIndex2d, StagedIndex2dReads, NoIndex2dReads>;

} // namespace sm90
