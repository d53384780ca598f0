// Tiles in shared memory, and how rows of a tensor get there.
#pragma once

#include "common/arguments.h"
#include "sm80/copy.cuh"

namespace sm80 {

constexpr int round_up(int x, int to) { return (x + to - 1) / to * to; }

// kRows x kColumns elements. A row is padded to 16 elements, the width of a matrix instruction, and
// by 16 bytes more: an odd number of 16-byte units, so that eight consecutive rows start in
// different banks and no swizzle is needed.
template <typename E, int kRows_, int kColumns_> struct Tile {
    using Element = E;
    static constexpr int kRows = kRows_, kColumns = kColumns_;
    static constexpr int kPaddedColumns = round_up(kColumns, 16);
    static constexpr int kPitch = kPaddedColumns * static_cast<int>(sizeof(E)) + 16; // bytes
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

    __device__ Plane(const TensorArgument& tensor, int b, int h)
        : data(static_cast<E*>(tensor.data) + b * tensor.stride_b + h * tensor.stride_h),
          stride_s(tensor.stride_s), stride_d(tensor.stride_d) {}
    __device__ E* at(int row, int column) const {
        return data + row * stride_s + column * stride_d;
    }
    // Whether every row can be moved in pieces of `bytes`; then stride_d is 1.
    __device__ bool aligned_to(int bytes) const {
        const long long row_bytes = stride_s * static_cast<long long>(sizeof(E));
        return stride_d == 1 &&
               ((reinterpret_cast<long long>(data) | row_bytes) & (bytes - 1)) == 0;
    }
};

// The largest asynchronous copy that divides a row of kColumns; 0: none does.
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
            store_shared(tile.at(i / kPadding, kColumns + i % kPadding), flexc_from_float<E>(0));
    }
}

// Starts loading rows first_row + [0, kRows) of the plane with kThreads threads; rows from `length`
// on become zeros. Whole pieces go asynchronously when `aligned` (Plane::aligned_to(kCopyBytes)),
// which must be uniform; any other layout goes element by element through registers. Both are
// complete after commit_copies, wait_for_copies and a barrier.
template <int kThreads, typename E, int kRows, int kColumns>
__device__ inline void load_tile(Tile<E, kRows, kColumns> tile, const Plane<E>& plane, bool aligned,
                                 int first_row, int length) {
    constexpr int kBytes = kCopyBytes<E, kColumns>;
    constexpr int kPieces = kBytes == 0 ? 0 : kColumns * static_cast<int>(sizeof(E)) / kBytes;
    if constexpr (kPieces > 0 && kPieces <= kThreads) {
        if (aligned) { // a thread keeps its column and steps down the rows
            constexpr int kRowStep = kThreads / kPieces;
            const int row = static_cast<int>(threadIdx.x) / kPieces;
            const int column = static_cast<int>(threadIdx.x) % kPieces * (kColumns / kPieces);
            const int rows_left = length - first_row - row;
            const E* from = plane.data + (first_row + row) * plane.stride_s + column;
            const unsigned to = tile.at(row, column);
#pragma unroll
            for (int step = 0; step < kRows; step += kRowStep) {
                if ((kRows % kRowStep == 0 || row < kRows - step) &&
                    (kThreads % kPieces == 0 || row < kRowStep))
                    copy_async<kBytes>(to + step * tile.kPitch, from, step < rows_left);
                from += kRowStep * plane.stride_s;
            }
            return;
        }
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < kRows * kColumns; i += kThreads) {
        const int row = i / kColumns, column = i % kColumns;
        E value = flexc_from_float<E>(0);
        if (first_row + row < length) value = *plane.at(first_row + row, column);
        store_shared(tile.at(row, column), value);
    }
}

// One warp writes a tile of floats to rows first_row + [0, kRows) below `length`.
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
