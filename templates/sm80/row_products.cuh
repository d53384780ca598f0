// Sums over a row of o * d_out, by lanes that share the row.
#pragma once

#include "mod.cuh"
#include "sm80/tile.cuh"

namespace sm80 {

constexpr int kRowVector = 8; // elements that a thread reads at a time

// Threads that share a row: a power of two, at most a warp.
constexpr int lanes_for(int columns) {
    int lanes = 1;
    while (lanes < 32 && lanes * kRowVector < columns)
        lanes *= 2;
    return lanes;
}
constexpr int kRowLanes = lanes_for(mod::kHeadDimV);
static_assert(kRowLanes * kRowVector >= mod::kHeadDimV);

// Elements column + [0, kRowVector) of a row; zeros past the end. `aligned`: to 16 bytes.
template <typename T>
__device__ inline void load_vector(float (&x)[kRowVector], const Plane<T>& plane, bool aligned,
                                   int row, int column) {
    struct alignas(16) Piece {
        T element[16 / sizeof(T)];
    };
    constexpr int kPieces = kRowVector * static_cast<int>(sizeof(T)) / 16;
    constexpr int kInPiece = kRowVector / kPieces;
    if (aligned && column + kRowVector <= mod::kHeadDimV) {
        const Piece* const from = reinterpret_cast<const Piece*>(plane.data + row * plane.stride_s);
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            const Piece piece = from[column / kInPiece + i];
#pragma unroll
            for (int j = 0; j < kInPiece; ++j)
                x[i * kInPiece + j] = flexc_to_float(piece.element[j]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < kRowVector; ++i)
            x[i] = column + i < mod::kHeadDimV ? flexc_to_float(*plane.at(row, column + i)) : 0;
    }
}

__device__ inline float dot(const float (&x)[kRowVector], const float (&y)[kRowVector]) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kRowVector; ++i)
        sum += x[i] * y[i];
    return sum;
}

// This thread's part of the sum.
template <typename Output>
__device__ inline float partial_sum(const Plane<Output>& o, const Plane<mod::Element>& d_out,
                                    int row) {
    const int column = static_cast<int>(threadIdx.x) % kRowLanes * kRowVector;
    float x[kRowVector], y[kRowVector];
    load_vector(x, o, o.aligned_to(16), row, column);
    load_vector(y, d_out, d_out.aligned_to(16), row, column);
    return dot(x, y);
}

// Sums over the lanes that share a row; each of them gets the result.
__device__ inline float sum_of_lanes(float sum) {
#pragma unroll
    for (int distance = kRowLanes / 2; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    return sum;
}

// Returns rowsum(o * d_out) of a row.
__device__ inline float row_product(const AttentionArguments& attention,
                                    const SequenceLength& length, int h, int row) {
    const auto o = query_plane<mod::Element>(attention.o, length, h);
    const auto d_out = query_plane<mod::Element>(attention.d_out, length, h);
    return sum_of_lanes(attention.o_flags & kOutputF32
                            ? partial_sum(query_plane<float>(attention.o, length, h), d_out, row)
                            : partial_sum(o, d_out, row));
}

__device__ inline float d_lse_of(const AttentionArguments& attention, const SequenceLength& length,
                                 int h, int row) {
    return attention.d_lse.data ? *query_plane<float>(attention.d_lse, length, h).at(row, 0) : 0;
}

// Returns delta = rowsum(o * d_out) - d_lse, which is subtracted from dP to get dS / P.
__device__ inline float delta_of(const AttentionArguments& attention, const SequenceLength& length,
                                 int h, int row) {
    const float sum = row_product(attention, length, h, row);
    return attention.d_lse.data ? sum - d_lse_of(attention, length, h, row) : sum;
}

} // namespace sm80
