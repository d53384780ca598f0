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

// Writes two columns of a row of [.., columns]; `paired` says that pairs are aligned.
template <typename E>
__device__ inline void store_pair(const Plane<E>& plane, bool paired, int row, int column,
                                  int columns, float first, float second) {
    struct alignas(2 * sizeof(E)) Pair {
        E first, second;
    };
    const E a = flexc_from_float<E>(first), b = flexc_from_float<E>(second);
    if (paired && column + 1 < columns) {
        *reinterpret_cast<Pair*>(plane.data + row * plane.stride_s + column) = {a, b};
    } else {
        if (column < columns) *plane.at(row, column) = a;
        if (column + 1 < columns) *plane.at(row, column + 1) = b;
    }
}

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
    if (kBytes > 0 && aligned) {
        constexpr int kElements = kBytes > 0 ? kBytes / static_cast<int>(sizeof(E)) : 1;
        constexpr int kPieces = kColumns / kElements; // in a row
        constexpr int kSteps = (kRows * kPieces + kThreads - 1) / kThreads;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const int i = step * kThreads + static_cast<int>(threadIdx.x);
            const int row = i / kPieces, column = i % kPieces * kElements;
            if (kRows * kPieces % kThreads == 0 || row < kRows)
                copy_async<kBytes ? kBytes : 4>(
                    tile.at(row, column), plane.data + (first_row + row) * plane.stride_s + column,
                    first_row + row < length);
        }
    } else {
#pragma unroll 1
        for (int i = threadIdx.x; i < kRows * kColumns; i += kThreads) {
            const int row = i / kColumns, column = i % kColumns;
            E value = flexc_from_float<E>(0);
            if (first_row + row < length) value = *plane.at(first_row + row, column);
            store_shared(tile.at(row, column), value);
        }
    }
}

} // namespace sm80
