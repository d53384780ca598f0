// How gradients leave the chip: any type, any strides, stored or added.
#pragma once

#include "sm80/tile.cuh"

namespace sm80 {

// Columns column and column + 1 of a row of [.., columns]; `paired`: pairs are aligned.
template <typename E>
__device__ inline void store_pair(const Plane<E>& plane, bool paired, int row, int column,
                                  int columns, float first, float second) {
    struct alignas(2 * sizeof(E)) Pair {
        E first, second;
    };
    const E a = flexc_from_float<E>(first), b = flexc_from_float<E>(second);
    if (paired && column + 1 < columns) {
        *reinterpret_cast<Pair*>(plane.at(row, column)) = {a, b};
    } else {
        *plane.at(row, column) = a;
        if (column + 1 < columns) *plane.at(row, column + 1) = b;
    }
}

// One (b, h) of a gradient tensor.
template <typename E> struct GradientPlane {
    Plane<float> wide;
    Plane<E> narrow;
    bool is_wide, adds, paired;

    __device__ GradientPlane(const TensorArgument& tensor, unsigned flags, int b, int h)
        : wide(tensor, b, h), narrow(tensor, b, h), is_wide(sizeof(E) == 4 || flags & kOutputF32),
          adds(flags & kOutputAccumulate),
          paired(is_wide ? wide.aligned_to(8) : narrow.aligned_to(2 * sizeof(E))) {}

    // Columns column and column + 1 of [.., columns].
    __device__ void put(int row, int column, int columns, float first, float second) const {
        if (!is_wide) {
            store_pair(narrow, paired, row, column, columns, first, second);
            return;
        }
        if (adds) {
            first += *wide.at(row, column);
            if (column + 1 < columns) second += *wide.at(row, column + 1);
        }
        store_pair(wide, paired, row, column, columns, first, second);
    }
};

// Rows first_row + i of the plane, those before `length`, get factor * row i of the tile.
template <int kThreads, typename E, int kRows, int kColumns>
__device__ inline void write_gradient(const GradientPlane<E>& plane,
                                      Tile<float, kRows, kColumns> tile, int first_row, int length,
                                      float factor) {
    constexpr int kPairs = (kColumns + 1) / 2;
#pragma unroll 4
    for (int i = threadIdx.x; i < kRows * kPairs; i += kThreads) {
        const int row = i / kPairs, column = i % kPairs * 2;
        if (first_row + row >= length) break;
        plane.put(first_row + row, column, kColumns,
                  factor * load_shared_float(tile.at(row, column)),
                  factor * load_shared_float(tile.at(row, column + 1)));
    }
}

// to[0] += x, by anyone at any time.
__device__ inline void add_atomically(float* to, float x) {
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}
// The same for two neighbours; `paired`: to is aligned to 8 bytes.
template <bool kPaired>
__device__ inline void add_atomically(float* to, float first, float second) {
#if __CUDA_ARCH__ >= 900
    if constexpr (kPaired) {
        asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(first), "f"(second)
                     : "memory");
        return;
    }
#endif
    add_atomically(to, first);
    add_atomically(to + 1, second);
}

} // namespace sm80
