// Stores gradients to global memory: any type, any strides, overwriting or accumulating.
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

// The [rows, columns] of a gradient tensor for one (b, h), in f32 or in the type of the elements.
template <typename E> struct GradientPlane {
    Plane<float> wide;
    Plane<E> narrow;
    bool is_wide, adds, paired;

    __device__ GradientPlane(const Plane<float>& as_floats, const Plane<E>& as_elements,
                             unsigned flags)
        : wide(as_floats), narrow(as_elements), is_wide(sizeof(E) == 4 || flags & kOutputF32),
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

// The plane of one head, in a tensor with a row for each query, or for each key.
template <typename E>
__device__ inline GradientPlane<E> query_gradient(const TensorArgument& tensor, unsigned flags,
                                                  const SequenceLength& length, int h) {
    return {query_plane<float>(tensor, length, h), query_plane<E>(tensor, length, h), flags};
}
template <typename E>
__device__ inline GradientPlane<E> key_gradient(const TensorArgument& tensor, unsigned flags,
                                                const SequenceLength& length, int h_kv) {
    return {key_plane<float>(tensor, length, h_kv), key_plane<E>(tensor, length, h_kv), flags};
}

// Stores factor * row i of a block's result to row first_row + i of the plane, for rows before
// `length`. The result goes through shared memory as floats.
template <typename FloatTile, int kThreads, typename E, typename Result>
__device__ inline void store_gradient(unsigned shared, Result& result,
                                      const GradientPlane<E>& plane, int first_row, int length,
                                      float factor) {
    constexpr int kColumns = FloatTile::kColumns, kPairs = (kColumns + 1) / 2;
    const FloatTile tile{shared};
    store_result(tile, result);
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < FloatTile::kRows * kPairs; i += kThreads) {
        const int row = i / kPairs, column = i % kPairs * 2;
        if (first_row + row >= length) break;
        plane.put(first_row + row, column, kColumns,
                  factor * load_shared_float(tile.at(row, column)),
                  factor * load_shared_float(tile.at(row, column + 1)));
    }
}

// to[0] += x, atomically.
__device__ inline void add_atomically(float* to, float x) {
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}

// Adds 16 columns of a row (fewer if columns < 16), held by a quad of threads, to to[0 .. columns)
// atomically: each thread has two of the first 8 in `left` and two of the last 8 in `right`. Called
// by all threads of the warp. kAligned: rows are aligned to 16 bytes; neighbours then swap halves,
// so that each thread adds four columns at once.
template <bool kAligned>
__device__ inline void add_atomically(float* to, int columns, const float (&left)[2],
                                      const float (&right)[2]) {
    const int t = static_cast<int>(threadIdx.x) % 4;
#if __CUDA_ARCH__ >= 900
    constexpr bool kFourAtOnce = kAligned;
    if constexpr (kFourAtOnce) {
        const bool odd = t % 2;
        const float got[2] = {__shfl_xor_sync(0xffffffffu, odd ? left[0] : right[0], 1),
                              __shfl_xor_sync(0xffffffffu, odd ? left[1] : right[1], 1)};
        const int column = odd ? 2 * t + 6 : 2 * t;
        if (column < columns)
            asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + column),
                         "f"(odd ? got[0] : left[0]), "f"(odd ? got[1] : left[1]),
                         "f"(odd ? right[0] : got[0]), "f"(odd ? right[1] : got[1])
                         : "memory");
    }
#else
    constexpr bool kFourAtOnce = false;
#endif
    if constexpr (!kFourAtOnce) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int column = 2 * t + i;
            if (column < columns) add_atomically(to + column, left[i]);
            if (column + 8 < columns) add_atomically(to + column + 8, right[i]);
        }
    }
}

} // namespace sm80
