// Sums o * d_out over the columns of rows, of as many rows as the block has threads.
#pragma once

#include "common/element.cuh"
#include "sm80/row_products.cuh"

namespace sm90 {

// Loads 16 bytes, which nobody writes while the kernel runs, past the L1 cache. Loads that come one
// after the other in the program are in flight together.
__device__ inline uint4 load_past(const uint4* from) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from));
    return x;
}

// Eight neighbouring elements of a row, as they are in memory.
template <typename T> struct Eight {
    static constexpr int kWords = 8 * static_cast<int>(sizeof(T)) / 16;
    uint4 words[kWords];

    __device__ void load(const T* from) {
#pragma unroll
        for (int i = 0; i < kWords; ++i)
            words[i] = load_past(reinterpret_cast<const uint4*>(from) + i);
    }
    __device__ void clear() {
#pragma unroll
        for (int i = 0; i < kWords; ++i)
            words[i] = {0, 0, 0, 0};
    }
    __device__ void convert(float (&x)[8]) const {
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            const unsigned word[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if constexpr (sizeof(T) == 4) {
                    x[i * 4 + j] = __uint_as_float(word[j]);
                } else {
                    x[2 * j] = flexc_first(T{}, word[j]);
                    x[2 * j + 1] = flexc_second(T{}, word[j]);
                }
            }
        }
    }
};

// Number of rows whose loads are in flight together.
constexpr int kRowsAtOnce = sm80::kRowLanes < 4 ? sm80::kRowLanes : 4;

// Returns the sum of row first_row + threadIdx.x. As many lanes as rows share these, and each ends
// up with one. Rows past the last count as the last.
template <bool kAligned, typename Output>
__device__ inline float row_product_of(const sm80::Plane<Output>& o,
                                       const sm80::Plane<mod::Element>& d_out, int first_row,
                                       int last_row) {
    using namespace sm80;
    const int lane = static_cast<int>(threadIdx.x) % kRowLanes;
    const int column = lane * kRowVector;
    first_row += static_cast<int>(threadIdx.x) - lane;
    float own = 0;
#pragma unroll 1
    for (int first = 0; first < kRowLanes; first += kRowsAtOnce) {
        float sums[kRowsAtOnce];
        if constexpr (kAligned) {
            Eight<Output> x[kRowsAtOnce];
            Eight<mod::Element> y[kRowsAtOnce];
#pragma unroll
            for (int i = 0; i < kRowsAtOnce; ++i) {
                const int row = min(first_row + first + i, last_row);
                if (mod::kHeadDimV % (kRowLanes * kRowVector) == 0 || column < mod::kHeadDimV) {
                    x[i].load(o.data + row * o.stride_s + column);
                    y[i].load(d_out.data + row * d_out.stride_s + column);
                } else {
                    x[i].clear();
                    y[i].clear();
                }
            }
#pragma unroll
            for (int i = 0; i < kRowsAtOnce; ++i) {
                float a[kRowVector], b[kRowVector];
                x[i].convert(a);
                y[i].convert(b);
                sums[i] = 0;
#pragma unroll
                for (int j = 0; j < kRowVector; ++j)
                    sums[i] += a[j] * b[j];
            }
        } else {
#pragma unroll
            for (int i = 0; i < kRowsAtOnce; ++i)
                sums[i] = partial_sum(o, d_out, min(first_row + first + i, last_row));
        }
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i) {
#pragma unroll
            for (int distance = kRowLanes / 2; distance > 0; distance /= 2)
                sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], distance);
            if (lane == first + i) own = sums[i];
        }
    }
    return own;
}

__device__ inline float row_product_of(const AttentionArguments& attention,
                                       const SequenceLength& length, int h, int first_row) {
    using namespace sm80;
    const auto d_out = query_plane<mod::Element>(attention.d_out, length, h);
    const auto with = [&](const auto& o) {
        return o.aligned_to(16) && d_out.aligned_to(16)
                   ? row_product_of<true>(o, d_out, first_row, length.queries() - 1)
                   : row_product_of<false>(o, d_out, first_row, length.queries() - 1);
    };
    return attention.o_flags & kOutputF32 ? with(query_plane<float>(attention.o, length, h))
                                          : with(query_plane<mod::Element>(attention.o, length, h));
}

} // namespace sm90
