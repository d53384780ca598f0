// Tiles in shared memory, and loads of a tensor's rows into them.
#pragma once

#include "common/sequence_length.cuh"
#include "sm80/copy.cuh"
#include "sm80/layout.h"

namespace sm80 {

// kRows x kColumns elements, in rows that layout.h pads.
template <typename E, int kRows_, int kColumns_> struct Tile {
    using Element = E;
    static constexpr int kRows = kRows_, kColumns = kColumns_;
    static constexpr int kPaddedColumns = round_up(kColumns, 16);
    static constexpr int kPitch = tile_row_bytes(kColumns, static_cast<int>(sizeof(E))); // bytes
    static constexpr int kBytes = kRows * kPitch;

    unsigned base; // shared address

    __device__ unsigned at(int row, int column) const {
        return base + row * kPitch + column * static_cast<int>(sizeof(E));
    }
};

// The [sequence, head dim] matrix of one (b, h) of a tensor.
template <typename E> struct Plane {
    E* data;
    long long stride_s, stride_d;

    __device__ Plane(const TensorArgument& tensor, int b, int h, long long first_row = 0)
        : data(static_cast<E*>(tensor.data) + b * tensor.stride_b + h * tensor.stride_h),
          stride_s(tensor.stride_s), stride_d(tensor.stride_d) {
        if constexpr (!mod::Layouts::kAreDense) data += first_row * stride_s;
    }
    __device__ E* at(int row, int column) const {
        return data + row * stride_s + column * stride_d;
    }
    // Returns whether every row can be copied in pieces of `bytes`; then stride_d is 1.
    __device__ bool aligned_to(int bytes) const {
        const long long row_bytes = stride_s * static_cast<long long>(sizeof(E));
        return stride_d == 1 &&
               ((reinterpret_cast<long long>(data) | row_bytes) & (bytes - 1)) == 0;
    }
};

// Returns the plane of a head of a tensor with a row for each query.
template <typename E>
__device__ inline Plane<E> query_plane(const TensorArgument& tensor, const SequenceLength& length,
                                       int h) {
    return {tensor, length.b(), h, length.first_query_row()};
}
// Returns the plane of a head of keys in order; see scattered_tile.cuh for others.
template <typename E>
__device__ inline Plane<E> key_plane(const TensorArgument& tensor, const SequenceLength& length,
                                     int h_kv) {
    return {tensor, length.b(), h_kv, length.first_key_row()};
}

// Bytes of the largest asynchronous copy that divides a row of kColumns; 0 if none does.
template <typename E, int kColumns, int kRowBytes = kColumns * static_cast<int>(sizeof(E))>
constexpr int kCopyBytes = kRowBytes % 16 == 0  ? 16
                           : kRowBytes % 8 == 0 ? 8
                           : kRowBytes % 4 == 0 ? 4
                                                : 0;

// Zeros the padding columns, which load_tile never writes. Visible after a barrier.
template <int kThreads, typename E, int kRows, int kColumns>
__device__ inline void clear_padding(Tile<E, kRows, kColumns> tile) {
    constexpr int kPadding = Tile<E, kRows, kColumns>::kPaddedColumns - kColumns;
    if constexpr (kPadding > 0) {
#pragma unroll 1
        for (int i = threadIdx.x; i < kRows * kPadding; i += kThreads)
            store_shared(tile.at(i / kPadding, kColumns + i % kPadding), E{});
    }
}

// Loads a tile element by element; row_of(row) is where a row begins. Rows from rows_left on become
// zeros.
template <int kThreads, typename T, typename RowOf>
__device__ inline void load_elements(T tile, int rows_left, long long stride_d, RowOf row_of) {
    using E = typename T::Element;
#pragma unroll 1
    for (int i = threadIdx.x; i < T::kRows * T::kColumns; i += kThreads) {
        const int row = i / T::kColumns, column = i % T::kColumns;
        E value{};
        if (row < rows_left) value = row_of(row)[column * stride_d];
        store_shared(tile.at(row, column), value);
    }
}

// Walks down the rows of a plane and loads tiles, with kThreads threads. Whole pieces go
// asynchronously where the layout allows; any other goes element by element through registers. Both
// are complete after wait_for_copies and a barrier. Holds one pointer per thread.
template <int kThreads, typename T> struct TileSource {
    using E = typename T::Element;
    static constexpr int kBytes = kCopyBytes<E, T::kColumns>;
    static constexpr int kPieces =
        kBytes == 0 ? 0 : T::kColumns * static_cast<int>(sizeof(E)) / kBytes; // pieces of a row
    static constexpr bool kCanCopy = kPieces > 0 && kPieces <= kThreads;

    const E* from; // this thread's piece when aligned, else the tile's first element
    long long stride_s, stride_d;
    bool aligned; // uniform

    __device__ TileSource(const Plane<E>& plane, int first_row)
        : from(plane.data + first_row * plane.stride_s), stride_s(plane.stride_s),
          stride_d(plane.stride_d), aligned(plane.aligned_to(kBytes)) {
        if constexpr (kCanCopy)
            if (aligned) from += piece_row() * stride_s + piece_column();
    }
    __device__ void advance(int rows) { from += rows * stride_s; }

    // Starts to load a tile. Rows from rows_left on become zeros.
    __device__ void load(T tile, int rows_left) const {
        if constexpr (kCanCopy) {
            if (aligned) {
                copy_pieces(tile, rows_left);
                return;
            }
        }
        load_elements<kThreads>(tile, rows_left, stride_d,
                                [&](int row) { return from + row * stride_s; });
    }

  private:
    static constexpr int kRowStep = kCanCopy ? kThreads / kPieces : 1;
    static __device__ int piece_row() { return static_cast<int>(threadIdx.x) / kPieces; }
    static __device__ int piece_column() {
        return static_cast<int>(threadIdx.x) % kPieces * (T::kColumns / kPieces);
    }
    // A thread keeps its column and steps down the rows.
    __device__ void copy_pieces(T tile, int rows_left) const {
        const int row = piece_row();
        const unsigned to = tile.at(row, piece_column());
        const E* piece = from;
#pragma unroll
        for (int step = 0; step < T::kRows; step += kRowStep) {
            if ((T::kRows % kRowStep == 0 || row < T::kRows - step) &&
                (kThreads % kPieces == 0 || row < kRowStep))
                copy_async<kBytes>(to + step * T::kPitch, piece, step < rows_left - row);
            piece += kRowStep * stride_s;
        }
    }
};

// Starts loading rows first_row + [0, kRows) of the plane; those from `length` on become zeros.
template <int kThreads, typename E, int kRows, int kColumns>
__device__ inline void load_tile(Tile<E, kRows, kColumns> tile, const Plane<E>& plane,
                                 int first_row, int length) {
    TileSource<kThreads, Tile<E, kRows, kColumns>>(plane, first_row).load(tile, length - first_row);
}

// Writes a tile of floats to rows first_row + [0, kRows) below `length`. Called by one warp.
template <typename T, int kRows, int kColumns>
__device__ inline void store_rows(const Plane<T>& plane, Tile<float, kRows, kColumns> tile,
                                  int first_row, int length) {
    struct alignas(4 * sizeof(T)) Four {
        T value[4];
    };
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (kColumns % 4 == 0 && plane.aligned_to(sizeof(Four))) {
#pragma unroll 1
        for (int i = 4 * lane; i < kRows * kColumns; i += 4 * 32) {
            const int row = i / kColumns, column = i % kColumns;
            float x[4];
            load_shared(x, tile.at(row, column));
            if (first_row + row < length)
                *reinterpret_cast<Four*>(plane.at(first_row + row, column)) = {
                    flexc_from_float<T>(x[0]), flexc_from_float<T>(x[1]), flexc_from_float<T>(x[2]),
                    flexc_from_float<T>(x[3])};
        }
    } else {
#pragma unroll 1
        for (int i = lane; i < kRows * kColumns; i += 32) {
            const int row = i / kColumns, column = i % kColumns;
            const float x = load_shared_float(tile.at(row, column));
            if (first_row + row < length)
                *plane.at(first_row + row, column) = flexc_from_float<T>(x);
        }
    }
}

} // namespace sm80
