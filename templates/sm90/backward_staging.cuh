// What a program reads by a query and a row or column of keys as a grid, on its way through shared
// memory: one warp stages it beside the queries, and those who compute scores load it for a
// thread's two keys. The host sees to it that the tensor's first key starts a row.
#pragma once

#include "sm90/backward_layout.cuh"
#include "sm90/copy_async.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

template <int kRead> using ColumnElement = typename mod::ColumnRead<kRead>::Element;

// By a whole warp, for one tile of queries.
class GridStage {
  public:
    __device__ GridStage(const AttentionArguments& attention, const mod::Arguments& arguments,
                         const HeadPlace& place, int tile_query, int first_key)
        : attention_(attention), arguments_(arguments), place_(place), tile_query_(tile_query),
          first_key_(first_key) {
        if constexpr (kHoldsRows)
#pragma unroll
            for (int band = 0; band < kBands; ++band)
#pragma unroll
                for (int read = 0; read < mod::kRowReads; ++read)
                    read_rows(rows_[band][read], band, read, 0);
        if constexpr (mod::kColumnReads > 0) find_columns<0>();
    }

    // Memory that nobody reads any more. Arrives twice for each lane: for what it stored and what
    // the copy engine brings, and for what it copies.
    __device__ void fill(unsigned memory, Barrier full) const {
        store_rows(memory);
        int bytes = 0;
        if constexpr (mod::kColumnReads > 0)
            bytes = fill_columns<0>(memory + mod::kRowReads * kRowReadBytes, full);
        if (bytes > 0)
            full.arrive_expecting(bytes);
        else
            full.arrive();
        arrive_after_copies(full);
    }

  private:
    static constexpr int kBands = mod::kQueryTile / 32; // a lane has a query of each
    // Reads of rows that are under way at once; all of a tile's start before its memory is free,
    // where there are registers for them.
    static constexpr int kInFlight = kGridRows < 12 ? kGridRows : 12;
    static constexpr bool kHoldsRows =
        kGridRows == kInFlight && kBands * mod::kRowReads * kGridRows <= 24;

    static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

    // What `visit` gives for an element that is in the tensors or beside their last.
    template <typename Visit> __device__ auto at(int query, int key, Visit visit) const {
        const int q =
            min(tile_query_ + query, attention_.q_len - 1) + static_cast<int>(attention_.q_offset);
        const int kv = min(key, attention_.kv_len - 1) + static_cast<int>(attention_.kv_offset);
        const HeadPlace& place = place_;
        const mod::Row row =
            mod::at_row(arguments_, place.launch, place.head, place.b, place.h, place.h_kv, q);
        const mod::Column column =
            mod::at_column(arguments_, place.launch, place.head, place.b, place.h, place.h_kv, kv);
        return visit(mod::At{arguments_, place.launch, place.head, row, column, place.b, place.h,
                             place.h_kv, q, kv, q, kv, nullptr, 0, 0, nullptr});
    }

    __device__ void read_rows(float (&values)[kInFlight], int band, int read, int first) const {
        const int start = first_key_ - first_key_ % mod::kKeyWidth;
#pragma unroll
        for (int i = 0; i < kInFlight; ++i)
            if (first + i < kGridRows)
                values[i] =
                    at(32 * band + lane(), start + (first + i) * mod::kKeyWidth,
                       [&](const mod::At& element) { return mod::row_read(element, read); });
    }
    __device__ void store_rows(unsigned memory) const {
#pragma unroll
        for (int read = 0; read < mod::kRowReads; ++read)
#pragma unroll(kHoldsRows ? kBands : 1)
            for (int band = 0; band < kBands; ++band) {
                const unsigned to = memory + read * kRowReadBytes + 4 * (32 * band + lane());
#pragma unroll 1
                for (int first = 0; first < kGridRows; first += kInFlight) {
                    float values[kInFlight];
                    if constexpr (kHoldsRows)
#pragma unroll
                        for (int i = 0; i < kInFlight; ++i)
                            values[i] = rows_[band][read][i];
                    else
                        read_rows(values, band, read, first);
#pragma unroll
                    for (int i = 0; i < kInFlight; ++i)
                        if (first + i < kGridRows)
                            store_shared_element(to + (first + i) * 4 * mod::kQueryTile, values[i]);
                }
            }
    }

    template <int kRead>
    static constexpr int kBytes = // of a query
        mod::kKeyWidth * static_cast<int>(sizeof(ColumnElement<kRead>));
    template <int kRead> static constexpr int kPiece = kBytes<kRead> % 16 == 0 ? 16 : 4;

    // Where the columns of a query start that are side by side in memory; else 0.
    template <int kRead> __device__ void find_columns() {
        using E = ColumnElement<kRead>;
#pragma unroll
        for (int band = 0; band < kBands; ++band) {
            const E* const first = address<kRead>(32 * band + lane(), 0);
            const bool in_pieces = mod::kColumnsAreLinear && kBytes<kRead> % kPiece<kRead> == 0 &&
                                   attention_.kv_len >= mod::kKeyWidth && first != nullptr &&
                                   address<kRead>(32 * band + lane(), mod::kKeyWidth - 1) ==
                                       first + mod::kKeyWidth - 1 &&
                                   reinterpret_cast<unsigned long long>(first) % kPiece<kRead> == 0;
            columns_[kRead][band] = in_pieces ? reinterpret_cast<unsigned long long>(first) : 0;
        }
        if constexpr (kRead + 1 < mod::kColumnReads) find_columns<kRead + 1>();
    }
    template <int kRead>
    __device__ const ColumnElement<kRead>* address(int query, int column) const {
        return at(query, column,
                  [](const mod::At& element) { return mod::ColumnRead<kRead>::address(element); });
    }

    // The bytes that the copy engine brings for this lane.
    template <int kRead> __device__ int fill_columns(unsigned memory, Barrier full) const {
        const unsigned columns = memory + kRead * kColumnReadBytes;
        int bytes = 0;
#pragma unroll
        for (int band = 0; band < kBands; ++band) {
            const unsigned long long start = columns_[kRead][band];
            const unsigned to = columns + 32 * band * kColumnPitch;
            if (!__all_sync(0xffffffffu, start != 0)) {
                copy_elements<kRead>(to, 32 * band);
            } else if constexpr (kPiece<kRead> == 16) {
                load_bytes(to + lane() * kColumnPitch, reinterpret_cast<const void*>(start),
                           kBytes<kRead>, full);
                bytes += kBytes<kRead>;
            } else {
                copy_words<kBytes<kRead> / 4>(to, start);
            }
        }
        if constexpr (kRead + 1 < mod::kColumnReads) bytes += fill_columns<kRead + 1>(memory, full);
        return bytes;
    }

    // Of 32 queries, of which each lane knows where one starts.
    template <int kWords> static __device__ void copy_words(unsigned to, unsigned long long start) {
#pragma unroll 4
        for (int i = 0; i < kWords; ++i) {
            const int word = 32 * i + lane();
            const int query = word / kWords, offset = word % kWords * 4;
            const void* const from = reinterpret_cast<const void*>(
                __shfl_sync(0xffffffffu, start, query) + static_cast<unsigned>(offset));
            copy_word_async(to + query * kColumnPitch + offset, from);
        }
    }
    // Any layout, and columns that are outside the buffer.
    template <int kRead> __device__ void copy_elements(unsigned to, int first) const {
        using E = ColumnElement<kRead>;
#pragma unroll 1
        for (int i = lane(); i < 32 * mod::kKeyWidth; i += 32) {
            const int query = i / mod::kKeyWidth, column = i % mod::kKeyWidth;
            const E* const from = address<kRead>(first + query, column);
            store_shared_element(to + query * kColumnPitch + column * static_cast<int>(sizeof(E)),
                                 from == nullptr ? E{} : *from);
        }
    }

    const AttentionArguments& attention_;
    const mod::Arguments& arguments_;
    const HeadPlace& place_;
    const int tile_query_, first_key_; // in the tensors
    float rows_[kBands][mod::kRowReads > 0 ? mod::kRowReads : 1][kInFlight];
    unsigned long long columns_[mod::kColumnReads > 0 ? mod::kColumnReads : 1][kBands];
};

// What one thread loads: for two neighbouring queries, and its two keys, which are eight apart.
class GridReads {
  public:
    static constexpr int kReads = mod::kRowReads + mod::kColumnReads;
    // [query][key][read], reads by the row first.
    using Values = float[2][2][kReads > 0 ? kReads : 1];

    // first_key: this thread's; first_query: of the tile.
    __device__ GridReads(int tile_key, int first_key, int first_query) {
        if constexpr (!kStagesGrid) return;
        const int start = tile_key - tile_key % mod::kKeyWidth;
#pragma unroll
        for (int key = 0; key < 2; ++key) {
            const int from_start = first_key + 8 * key - start;
            row_[key] = from_start / mod::kKeyWidth * (4 * mod::kQueryTile) + 4 * first_query;
            column_[key] = from_start % mod::kKeyWidth;
        }
        first_query_ = first_query;
    }

    __device__ void use(unsigned memory) { memory_ = memory; }

    // Of the queries 8 * pair from the thread's first.
    __device__ void load(Values& values, int pair) const {
#pragma unroll
        for (int read = 0; read < mod::kRowReads; ++read)
#pragma unroll
            for (int key = 0; key < 2; ++key) {
                // Sixteen keys of a warp start at a multiple of 16.
                constexpr bool kInOneRow = mod::kKeyWidth % 16 == 0;
                float both[2];
                if (key == 0 || !kInOneRow)
                    load_shared(memory_ + read * kRowReadBytes + row_[key] + 32 * pair, both);
#pragma unroll
                for (int side = 0; side < 2; ++side)
                    values[side][key][read] =
                        key == 0 || !kInOneRow ? both[side] : values[side][0][read];
            }
        if constexpr (mod::kColumnReads > 0) load_columns<0>(values, pair);
    }

  private:
    template <int kRead> __device__ void load_columns(Values& values, int pair) const {
        using E = ColumnElement<kRead>;
        const unsigned columns = memory_ + mod::kRowReads * kRowReadBytes +
                                 kRead * kColumnReadBytes + 8 * pair * kColumnPitch;
        if constexpr (sizeof(E) == 2 && mod::kKeyWidth % 16 == 0) {
            // Lanes name the queries of a matrix of eight keys, and of the next.
            const int lane = static_cast<int>(threadIdx.x) % 32;
            const int first_column = column_[0] - lane / 4 + lane / 8 % 2 * 8;
            unsigned words[2];
            load_transposed(columns + lane % 8 * kColumnPitch + 2 * first_column, words);
#pragma unroll
            for (int key = 0; key < 2; ++key) {
                values[0][key][mod::kRowReads + kRead] = flexc_first(E{}, words[key]);
                values[1][key][mod::kRowReads + kRead] = flexc_second(E{}, words[key]);
            }
        } else {
#pragma unroll
            for (int side = 0; side < 2; ++side)
#pragma unroll
                for (int key = 0; key < 2; ++key)
                    values[side][key][mod::kRowReads + kRead] = flexc_to_float(
                        load_element<E>(columns + (first_query_ + side) * kColumnPitch +
                                        column_[key] * static_cast<int>(sizeof(E))));
        }
        if constexpr (kRead + 1 < mod::kColumnReads) load_columns<kRead + 1>(values, pair);
    }

    template <typename E> static __device__ E load_element(unsigned from) {
        if constexpr (sizeof(E) == 4)
            return __uint_as_float(load_shared_word(from));
        else
            return E{load_shared_half(from)};
    }

    unsigned memory_;
    int row_[2], column_[2]; // bytes; columns
    int first_query_;
};

} // namespace sm90
