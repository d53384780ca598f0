// Values that a program reads by query and by row or column of a 2-D key index. One warp stages
// them in shared memory beside the queries; consumers load them for a thread's two keys. The plan
// makes sure that the tensor's first key starts a row.
#pragma once

#include "sm90/backward_layout.cuh"
#include "sm90/copy_async.cuh"

namespace sm90 {

template <int kRead> using RowElement = typename mod::RowRead<kRead>::Element;
template <int kRead> using ColumnElement = typename mod::ColumnRead<kRead>::Element;

// What `visit` gives for an element that is in the tensors or beside their last.
template <typename Visit>
__device__ inline auto visit_inside(const AttentionArguments& attention,
                                    const mod::Arguments& arguments, const HeadPlace& place,
                                    int query, int key, Visit visit) {
    return visit_element(attention, arguments, place, min(query, attention.q_len - 1),
                         min(key, attention.kv_len - 1), visit);
}

// By a whole warp, for one tile of queries, whatever the indices of the reads are.
struct Index2dStage {
    const AttentionArguments& attention;
    const mod::Arguments& arguments;
    const HeadPlace& place;
    const int tile_query, first_key; // in the tensors
    const unsigned memory;

    // Arrives twice for each lane: for what it stored and for what it copies.
    __device__ void fill(Barrier full) const {
        if constexpr (mod::kRowReads > 0) fill_rows();
        if constexpr (mod::kColumnReads > 0) fill_columns<0>();
        full.arrive();
        arrive_after_copies(full);
    }

  private:
    static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

    template <typename Visit> __device__ auto at(int query, int key, Visit visit) const {
        return visit_inside(attention, arguments, place, tile_query + query, key, visit);
    }

    template <int kRead = 0> __device__ float row_value(const mod::At& at, int read) const {
        if constexpr (kRead < mod::kRowReads) {
            if (read != kRead) return row_value<kRead + 1>(at, read);
            const RowElement<kRead>* const from = mod::RowRead<kRead>::address(at);
            return from == nullptr ? 0 : flexc_to_float(*from);
        } else {
            return 0;
        }
    }
    __device__ void fill_rows() const {
        constexpr int kInFlight = 4; // reads
        const int start = first_key - first_key % mod::kKeyWidth;
#pragma unroll
        for (int read = 0; read < mod::kRowReads; ++read)
#pragma unroll 1
            for (int query = lane(); query < mod::kQueryTile; query += 32) {
                const unsigned to = memory + read * kRowReadBytes + 4 * query;
#pragma unroll 1
                for (int first = 0; first < kIndex2dRows; first += kInFlight) {
                    float values[kInFlight];
#pragma unroll
                    for (int i = 0; i < kInFlight; ++i)
                        if (first + i < kIndex2dRows)
                            values[i] = at(
                                query, start + (first + i) * mod::kKeyWidth,
                                [&](const mod::At& element) { return row_value(element, read); });
#pragma unroll
                    for (int i = 0; i < kInFlight; ++i)
                        if (first + i < kIndex2dRows)
                            store_shared_element(to + (first + i) * 4 * mod::kQueryTile, values[i]);
                }
            }
    }

    template <int kRead> __device__ void fill_columns() const {
        using E = ColumnElement<kRead>;
        constexpr int kBytes = mod::kKeyWidth * static_cast<int>(sizeof(E)); // of a query
        constexpr int kPiece = kBytes % 16 == 0 ? 16 : 4;
        const unsigned columns = memory + mod::kRowReads * kRowReadBytes + kRead * kColumnReadBytes;
#pragma unroll 1
        for (int band = 0; band < mod::kQueryTile; band += 32) {
            const E* const first = address<kRead>(band + lane(), 0);
            const bool in_pieces =
                mod::kColumnsAreLinear && kBytes % kPiece == 0 &&
                attention.kv_len >= mod::kKeyWidth && first != nullptr &&
                address<kRead>(band + lane(), mod::kKeyWidth - 1) == first + mod::kKeyWidth - 1 &&
                reinterpret_cast<unsigned long long>(first) % kPiece == 0;
            const unsigned to = columns + band * kColumnPitch;
            if (__all_sync(0xffffffffu, in_pieces))
                copy_pieces<kPiece, kBytes / kPiece>(to, first);
            else
                copy_elements<kRead>(to, band);
        }
        if constexpr (kRead + 1 < mod::kColumnReads) fill_columns<kRead + 1>();
    }
    template <int kRead>
    __device__ const ColumnElement<kRead>* address(int query, int column) const {
        return at(query, column,
                  [](const mod::At& element) { return mod::ColumnRead<kRead>::address(element); });
    }

    // Of 32 queries, of which each lane knows where one starts.
    template <int kPiece, int kPieces>
    static __device__ void copy_pieces(unsigned to, const void* first) {
        const auto start = reinterpret_cast<unsigned long long>(first);
#pragma unroll 4
        for (int i = 0; i < kPieces; ++i) {
            const int piece = 32 * i + lane();
            const int query = piece / kPieces, offset = piece % kPieces * kPiece;
            const void* const from = reinterpret_cast<const void*>(
                __shfl_sync(0xffffffffu, start, query) + static_cast<unsigned>(offset));
            if constexpr (kPiece == 16)
                copy_async(to + query * kColumnPitch + offset, from);
            else
                copy_word_async(to + query * kColumnPitch + offset, from);
        }
    }
    // Any layout, and columns that are outside the buffer.
    template <int kRead> __device__ void copy_elements(unsigned to, int band) const {
        using E = ColumnElement<kRead>;
#pragma unroll 1
        for (int i = lane(); i < 32 * mod::kKeyWidth; i += 32) {
            const int query = i / mod::kKeyWidth, column = i % mod::kKeyWidth;
            const E* const from = address<kRead>(band + query, column);
            store_shared_element(to + query * kColumnPitch + column * static_cast<int>(sizeof(E)),
                                 from == nullptr ? E{} : *from);
        }
    }
};

// What one thread loads: for two neighbouring queries, and its two keys, which are eight apart.
class Index2dReads {
  public:
    static constexpr int kReads = mod::kRowReads + mod::kColumnReads;
    // [query][key][read], reads by the row first.
    using Values = float[2][2][kReads > 0 ? kReads : 1];

    // first_key: this thread's; first_query: of the tile.
    __device__ Index2dReads(int tile_key, int first_key, int first_query) {
        if constexpr (!kStagesIndex2d) return;
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
