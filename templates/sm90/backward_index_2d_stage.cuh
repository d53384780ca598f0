// Stages values that a program reads by query and by row or column of a 2-D key index: one warp
// writes them to shared memory beside the queries. The plan makes sure that the tensor's first key
// starts a row.
#pragma once

#include "common/place.cuh"
#include "common/static_for.cuh"
#include "sm90/backward_layout.cuh"
#include "sm90/copy_async.cuh"

namespace sm90 {

template <int kRead> using RowElement = typename mod::RowRead<kRead>::Element;
template <int kRead> using ColumnElement = typename mod::ColumnRead<kRead>::Element;

// Returns what `visit` gives for an element; a position past the end stands for the last one.
template <typename Visit>
__device__ inline auto visit_inside(const AttentionArguments& attention,
                                    const mod::Arguments& arguments, const HeadPlace& place,
                                    int query, int key, Visit visit) {
    return visit_element(attention, arguments, place, min(query, attention.q_len - 1),
                         min(key, attention.kv_len - 1), visit);
}

// Stages the reads of one tile of queries, whatever their indices are. Used by a whole warp.
struct Index2dStage {
    const AttentionArguments& attention;
    const mod::Arguments& arguments;
    const HeadPlace& place;
    const int tile_query, first_key; // in the tensors
    const unsigned memory;

    // Arrives twice for each lane: for what it stored and for what it copies.
    __device__ void fill(Barrier full) const {
        if constexpr (mod::KeyIndex2d::kRowReads > 0) fill_rows();
        fill_all_columns(IndicesTo<mod::KeyIndex2d::kColumnReads>{});
        full.arrive();
        arrive_after_copies(full);
    }

  private:
    static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

    template <typename Visit> __device__ auto at(int query, int key, Visit visit) const {
        return visit_inside(attention, arguments, place, tile_query + query, key, visit);
    }

    // Takes the read's number as an argument: a function for each read, as columns have, spills
    // more.
    template <int kRead = 0> __device__ float row_value(const mod::At& at, int read) const {
        if constexpr (kRead < mod::KeyIndex2d::kRowReads) {
            if (read != kRead) return row_value<kRead + 1>(at, read);
            const RowElement<kRead>* const from = mod::RowRead<kRead>::address(at);
            return from == nullptr ? 0 : flexc_to_float(*from);
        } else {
            return 0;
        }
    }
    __device__ void fill_rows() const {
        constexpr int kInFlight = 4; // reads
        const int start = first_key - first_key % kKeyWidth;
#pragma unroll
        for (int read = 0; read < mod::KeyIndex2d::kRowReads; ++read)
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
                                query, start + (first + i) * kKeyWidth,
                                [&](const mod::At& element) { return row_value(element, read); });
#pragma unroll
                    for (int i = 0; i < kInFlight; ++i)
                        if (first + i < kIndex2dRows)
                            store_shared_element(to + (first + i) * 4 * mod::kQueryTile, values[i]);
                }
            }
    }

    template <int... kReads> __device__ void fill_all_columns(Indices<kReads...>) const {
        (fill_columns<kReads>(), ...);
    }
    template <int kRead> __device__ void fill_columns() const {
        using E = ColumnElement<kRead>;
        constexpr int kBytes = kKeyWidth * static_cast<int>(sizeof(E)); // of a query
        constexpr int kPiece = kBytes % 16 == 0 ? 16 : 4;
        const unsigned columns =
            memory + mod::KeyIndex2d::kRowReads * kRowReadBytes + kRead * kColumnReadBytes;
#pragma unroll 1
        for (int band = 0; band < mod::kQueryTile; band += 32) {
            const E* const first = address<kRead>(band + lane(), 0);
            const bool in_pieces =
                mod::KeyIndex2d::kColumnsAreLinear && kBytes % kPiece == 0 &&
                attention.kv_len >= kKeyWidth && first != nullptr &&
                address<kRead>(band + lane(), kKeyWidth - 1) == first + kKeyWidth - 1 &&
                reinterpret_cast<unsigned long long>(first) % kPiece == 0;
            const unsigned to = columns + band * kColumnPitch;
            if (__all_sync(0xffffffffu, in_pieces))
                copy_pieces<kPiece, kBytes / kPiece>(to, first);
            else
                copy_elements<kRead>(to, band);
        }
    }
    template <int kRead>
    __device__ const ColumnElement<kRead>* address(int query, int column) const {
        return at(query, column,
                  [](const mod::At& element) { return mod::ColumnRead<kRead>::address(element); });
    }

    // Copies the columns of 32 queries in pieces of kPiece bytes. first: where the lane's query
    // starts.
    template <int kPiece, int kPieces>
    static __device__ void copy_pieces(unsigned to, const void* first) {
        const auto start = reinterpret_cast<unsigned long long>(first);
#pragma unroll 4
        for (int i = 0; i < kPieces; ++i) {
            const int piece = 32 * i + lane();
            const int query = piece / kPieces, offset = piece % kPieces * kPiece;
            const void* const from = reinterpret_cast<const void*>(
                __shfl_sync(0xffffffffu, start, query) + static_cast<unsigned>(offset));
            copy_piece_async<kPiece>(to + query * kColumnPitch + offset, from);
        }
    }
    // Copies the columns of 32 queries element by element, in any layout; zeros outside the buffer.
    template <int kRead> __device__ void copy_elements(unsigned to, int band) const {
        using E = ColumnElement<kRead>;
#pragma unroll 1
        for (int i = lane(); i < 32 * kKeyWidth; i += 32) {
            const int query = i / kKeyWidth, column = i % kKeyWidth;
            const E* const from = address<kRead>(band + query, column);
            store_shared_element(to + query * kColumnPitch + column * static_cast<int>(sizeof(E)),
                                 from == nullptr ? E{} : *from);
        }
    }
};

} // namespace sm90
