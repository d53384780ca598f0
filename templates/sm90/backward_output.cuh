// dk and dv of a warp's 16 keys, on their way to memory.
#pragma once

#include "sm90/backward_layout.cuh"
#include "sm90/pack.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

// Where a thread's eights of columns are in a row: its eights follow one another.
struct EveryColumn {
    __device__ int place(int eight) const { return eight; }
};

// In 16 bits, to the memory that held the warp's keys or values.
template <int kPanelCount, int kCount, typename Columns>
__device__ inline void write_rows(unsigned memory, Columns columns, const float (&sums)[kCount],
                                  float factor) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kCount; i += 8) {
        // Each lane names a row of one of four 8 x 8 matrices, two of them side by side.
        const int chunk = columns.place(i / 4) + lane / 16;
        const int panel = place_of_panel(chunk / 8, kPanelCount);
        const unsigned to =
            memory + panel * kKeyPanel + lane % 16 * kRowBytes + ((chunk % 8) ^ (lane % 8)) * 16;
        const auto pair = [&](int at) {
            return pack(mod::Element{}, sums[i + at] * factor, sums[i + at + 1] * factor);
        };
        store_matrices(to, pair(0), pair(2), pair(4), pair(6));
    }
    publish_shared();
}

// By one lane, what was written.
template <int kPanelCount>
__device__ inline void store_rows(const TensorMap& map, Corner corner, unsigned memory) {
#pragma unroll
    for (int panel = 0; panel < kPanelCount; ++panel) {
        store_box(map, corner, memory + place_of_panel(panel, kPanelCount) * kKeyPanel);
        corner.column += kPanelColumns;
    }
}

// In floats, of any strides, stored or added.
template <int kCount, typename Columns>
__device__ inline void store_floats(const TensorArgument& tensor, unsigned flags, Corner corner,
                                    int column_count, int length, Columns columns,
                                    const float (&sums)[kCount], float factor) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float* const plane = static_cast<float*>(tensor.data) + corner.batch * tensor.stride_b +
                         corner.head * tensor.stride_h;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        const int row = corner.row + lane / 4 + i / 2 % 2 * 8;
        const int column = lane % 4 * 2 + columns.place(i / 4) * 8 + i % 2;
        if (row >= length || column >= column_count) continue;
        float* const to = plane + row * tensor.stride_s + column * tensor.stride_d;
        *to = sums[i] * factor + (flags & kOutputAccumulate ? *to : 0);
    }
}

} // namespace sm90
