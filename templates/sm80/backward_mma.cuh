// Matrix products of the backward kernels: a block's result is cut in rectangles, one for each
// warp, and both operands come from shared memory, as stored or transposed.
#pragma once

#include "sm80/mma.cuh"

namespace sm80 {

// Returns how many warps divide the rows of a result of `fragments` x `units` pieces of 16 x 16:
// the choice with the least work for the busiest warp, then with the fewest operand loads.
constexpr int warps_along_rows(int fragments, int units, int warps) {
    int best = 1, best_cost = 1 << 30;
    for (int along = 1; along <= warps && fragments % along == 0; along *= 2) {
        const int across = warps / along;
        const int own_fragments = fragments / along, own_units = (units + across - 1) / across;
        const int cost = own_fragments * own_units * 1024 + own_fragments + own_units;
        if (cost <= best_cost) {
            best = along;
            best_cost = cost;
        }
    }
    return best;
}

// One warp's accumulators of a kHeight x kWidth result: kRowFragments times 16 rows, kUnits times
// 16 columns. Thread 4 g + t holds columns 2t and 2t + 1 of rows g and g + 8 of each 16 x 8.
// kWholeRows: no two warps share a row.
template <int kHeight_, int kWidth, int kWarps, bool kWholeRows = false> struct WarpResult {
    static constexpr int kHeight = kHeight_, kPaddedWidth = round_up(kWidth, 16);
    static constexpr int kAlong =
        kWholeRows ? kWarps : warps_along_rows(kHeight / 16, kPaddedWidth / 16, kWarps);
    static constexpr int kAcross = kWarps / kAlong;
    static constexpr int kRowFragments = kHeight / 16 / kAlong;
    static constexpr int kUnits = (kPaddedWidth / 16 + kAcross - 1) / kAcross;
    static constexpr int kRows = 2 * kRowFragments, kColumns = 2 * kUnits; // of a thread; 8 apart
    static_assert(kHeight % (16 * kAlong) == 0);

    float values[kRowFragments][kColumns][4];

    static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
    static __device__ int first_row() { return warp() / kAcross * 16 * kRowFragments; }
    static __device__ int first_column() { return warp() % kAcross * 16 * kUnits; }
    // Row of the result, and first of a pair of columns, of this thread's i-th row and pair.
    static __device__ int row(int i) { return first_row() + 8 * i + lane_index() / 4; }
    static __device__ int column(int i) { return first_column() + 8 * i + lane_index() % 4 * 2; }
    // Whether the unit exists: if the width does not divide evenly, the last warps have fewer.
    static __device__ bool has_unit(int unit) {
        return kPaddedWidth % (16 * kUnits * kAcross) == 0 ||
               first_column() + 16 * unit < kPaddedWidth;
    }

    __device__ float& at(int row, int column, int side) {
        return values[row / 2][column][row % 2 * 2 + side];
    }
    __device__ const float (&pair(int row, int column) const)[2] {
        return reinterpret_cast<const float(&)[2]>(values[row / 2][column][row % 2 * 2]);
    }
    __device__ void clear() {
#pragma unroll
        for (int fragment = 0; fragment < kRowFragments; ++fragment)
#pragma unroll
            for (int column = 0; column < kColumns; ++column)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    values[fragment][column][i] = 0;
    }
};

// sum += left * right over kDepth values of k, for kCount units of a warp's result, whose
// accumulators begin at sum[..][first]. left(fragment, k) gives 16 rows, right(b, unit, k) 16
// columns, both in the same order of k.
template <typename Result, typename E, int kDepth, int kUnroll, int kCount, int kColumns,
          typename Left, typename Right>
__device__ inline void accumulate_units(float (&sum)[Result::kRowFragments][kColumns][4],
                                        int first_unit, Left left, Right right) {
#pragma unroll kUnroll
    for (int k = 0; k < kDepth; k += kStepK<E>) {
        OperandA<E> a[Result::kRowFragments];
#pragma unroll
        for (int fragment = 0; fragment < Result::kRowFragments; ++fragment)
            a[fragment] = left(fragment, k);
#pragma unroll
        for (int unit = 0; unit < kCount; ++unit) {
            if (!Result::has_unit(first_unit + unit)) continue;
            OperandB<E> b[2];
            right(b, first_unit + unit, k);
#pragma unroll
            for (int fragment = 0; fragment < Result::kRowFragments; ++fragment) {
                multiply(sum[fragment][2 * unit], a[fragment], b[0]);
                multiply(sum[fragment][2 * unit + 1], a[fragment], b[1]);
            }
        }
    }
}

// The same for all units. kUnrolled: `left` needs k as a compile-time constant.
template <typename E, int kDepth, bool kUnrolled = false, typename Result, typename Left,
          typename Right>
__device__ inline void accumulate(Result& sum, Left left, Right right) {
    constexpr int kSteps = kDepth / kStepK<E>;
    if constexpr (sizeof(E) == 2) {
        accumulate_units<Result, E, kDepth, kSteps, Result::kUnits>(sum.values, 0, left, right);
    } else {
        // The matrix units round their sums toward zero. Floats are summed over one tile there, and
        // over tiles by rounded additions, so that long sequences keep f32 accuracy.
#pragma unroll
        for (int unit = 0; unit < Result::kUnits; ++unit) {
            float part[Result::kRowFragments][2][4] = {};
            accumulate_units<Result, E, kDepth, kUnrolled ? kSteps : 2, 1>(part, unit, left, right);
#pragma unroll
            for (int fragment = 0; fragment < Result::kRowFragments; ++fragment)
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    sum.values[fragment][2 * unit + i / 4][i % 4] += part[fragment][i / 4][i % 4];
        }
    }
}

// Rows [row, row + 16) of the tile, columns [k, k + kStepK), in paired order.
template <typename E, int kRows, int kColumns>
__device__ inline OperandA<E> load_a_paired(Tile<E, kRows, kColumns> tile, int row, int k) {
    if constexpr (sizeof(E) == 4) {
        const int lane = lane_index();
        const unsigned from = tile.at(row + lane / 4, k + lane % 4 * 2);
        unsigned raw[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            raw[i] = __float_as_uint(load_shared_float(from + i % 2 * 8 * tile.kPitch + i / 2 * 4));
        OperandA<E> a;
        operand_from(a, raw);
        return a;
    } else {
        return load_a(tile, row, k);
    }
}

// Columns [row, row + 16) of a tile whose rows are k: A transposed, in paired order.
template <typename E, int kRows, int kColumns>
__device__ inline OperandA<E> load_a_transposed(Tile<E, kRows, kColumns> tile, int row, int k) {
    const int lane = lane_index();
    unsigned raw[4];
    if constexpr (sizeof(E) == 4) {
        const unsigned from = tile.at(k + lane % 4 * 2, row + lane / 4);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            raw[i] = __float_as_uint(load_shared_float(from + i / 2 * tile.kPitch + i % 2 * 32));
    } else {
        const unsigned corner =
            tile.base + (lane % 8 + lane / 16 * 8) * tile.kPitch + lane / 8 % 2 * 16;
        load_matrices_transposed(raw, corner + k * tile.kPitch + row * 2);
    }
    OperandA<E> a;
    operand_from(a, raw);
    return a;
}

// Rows first_row + [0, kCount) of a tile.
template <int kCount, typename E, int kRows, int kColumns>
__device__ inline Tile<E, kCount, kColumns> rows_of(Tile<E, kRows, kColumns> tile, int first_row) {
    return {tile.at(first_row, 0)};
}

// result += L R' for tiles stored [row, k] and [column, k].
template <typename Result, typename E, int kColumns, int kLeftRows, int kRightRows>
__device__ inline void mma_rows(Result& result, Tile<E, kLeftRows, kColumns> left,
                                Tile<E, kRightRows, kColumns> right) {
    accumulate<E, Tile<E, kLeftRows, kColumns>::kPaddedColumns>(
        result,
        [&](int fragment, int k) { return load_a(left, Result::first_row() + 16 * fragment, k); },
        [&](OperandB<E>(&b)[2], int unit, int k) {
            load_b(b, right, Result::first_column() + 16 * unit, k);
        });
}

// result += L R for tiles stored [row, k] and [k, column].
template <typename Result, typename E, int kRows, int kDepth, int kColumns>
__device__ inline void add_product(Result& result, Tile<E, kRows, kDepth> left,
                                   Tile<E, kDepth, kColumns> right) {
    accumulate<E, kDepth>(
        result,
        [&](int fragment, int k) {
            return load_a_paired(left, Result::first_row() + 16 * fragment, k);
        },
        [&](OperandB<E>(&b)[2], int unit, int k) {
            load_b_transposed(b, right, Result::first_column() + 16 * unit, k);
        });
}

// result += L' R for tiles stored [k, row] and [k, column].
template <typename Result, typename E, int kRows, int kDepth, int kColumns>
__device__ inline void mma_columns(Result& result, Tile<E, kDepth, kRows> left,
                                   Tile<E, kDepth, kColumns> right) {
    accumulate<E, kDepth>(
        result,
        [&](int fragment, int k) {
            return load_a_transposed(left, Result::first_row() + 16 * fragment, k);
        },
        [&](OperandB<E>(&b)[2], int unit, int k) {
            load_b_transposed(b, right, Result::first_column() + 16 * unit, k);
        });
}

// Stores the warp's part of a result to a tile, in the tile's element type.
template <typename Result, typename E, int kRows, int kColumns>
__device__ inline void store_result(Tile<E, kRows, kColumns> tile, Result& result) {
#pragma unroll
    for (int column = 0; column < Result::kColumns; ++column) {
        if (!Result::has_unit(column / 2)) continue;
#pragma unroll
        for (int row = 0; row < Result::kRows; ++row) {
            const unsigned to = tile.at(Result::row(row), Result::column(column));
            const float low = result.at(row, column, 0), high = result.at(row, column, 1);
            if constexpr (sizeof(E) == 4) {
                store_shared(to, low);
                store_shared(to + 4, high);
            } else {
                store_shared(to, pack<E>(low, high));
            }
        }
    }
}

} // namespace sm80
