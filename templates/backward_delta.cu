// Before the backward kernels: delta = sum over d of d_out * o, less d_lse, for every query.
// One block does kQueryTile rows of one head.
#include "mod.cuh"

#include "sm80/tile.cuh"

using namespace sm80;
using mod::Element;

namespace {

constexpr int kThreads = 32 * mod::kWarps;
constexpr int kVector = 8; // elements that a thread reads at a time

// Threads that share a row: a power of two, at most a warp.
constexpr int lanes_for(int columns) {
    int lanes = 1;
    while (lanes < 32 && lanes * kVector < columns)
        lanes *= 2;
    return lanes;
}
constexpr int kLanes = lanes_for(mod::kHeadDimV);
static_assert(kLanes * kVector >= mod::kHeadDimV);
static_assert(mod::kQueryTile % (kThreads / kLanes) == 0); // so that warps stay together

// Elements column + [0, kVector) of a row; zeros past the end. `aligned`: to 16 bytes.
template <typename T>
__device__ void load_vector(float (&x)[kVector], const Plane<T>& plane, bool aligned, int row,
                            int column) {
    struct alignas(16) Piece {
        T element[16 / sizeof(T)];
    };
    constexpr int kPieces = kVector * static_cast<int>(sizeof(T)) / 16;
    constexpr int kInPiece = kVector / kPieces;
    if (aligned && column + kVector <= mod::kHeadDimV) {
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
        for (int i = 0; i < kVector; ++i)
            x[i] = column + i < mod::kHeadDimV ? flexc_to_float(*plane.at(row, column + i)) : 0;
    }
}

// This thread's part of the sum.
template <typename Output>
__device__ float partial_sum(const Plane<Output>& o, const Plane<Element>& d_out, int row) {
    const int column = static_cast<int>(threadIdx.x) % kLanes * kVector;
    float x[kVector], y[kVector];
    load_vector(x, o, o.aligned_to(16), row, column);
    load_vector(y, d_out, d_out.aligned_to(16), row, column);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i)
        sum += x[i] * y[i];
    return sum;
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_backward_delta(const __grid_constant__ AttentionArguments attention,
                         const __grid_constant__ mod::Arguments) {
    const int query_tiles = (attention.q_len + mod::kQueryTile - 1) / mod::kQueryTile;
    const int head = static_cast<int>(blockIdx.x) / query_tiles;
    const int b = head / attention.heads, h = head % attention.heads;
    const int first_row = static_cast<int>(blockIdx.x) % query_tiles * mod::kQueryTile;
    const int row_count = min(mod::kQueryTile, attention.q_len - first_row);
    const long long first_of_all = static_cast<long long>(head) * attention.q_len + first_row;

    const Plane<Element> o(attention.o, b, h), d_out(attention.d_out, b, h);
    const Plane<float> wide_o(attention.o, b, h);
    const bool is_wide = attention.o_flags & kOutputF32;
    for (int i = static_cast<int>(threadIdx.x) / kLanes; i < mod::kQueryTile;
         i += kThreads / kLanes) {
        const int row = first_row + min(i, row_count - 1);
        float sum = is_wide ? partial_sum(wide_o, d_out, row) : partial_sum(o, d_out, row);
#pragma unroll
        for (int distance = kLanes / 2; distance > 0; distance /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        if (threadIdx.x % kLanes == 0 && i < row_count) {
            if (attention.d_lse.data) sum -= *Plane<float>(attention.d_lse, b, h).at(row, 0);
            attention.delta[first_of_all + i] = sum;
        }
    }
}
