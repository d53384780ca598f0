// Stores dk and dv of a warp's 16 keys.
#pragma once

#include "sm90/backward_key_tile.cuh"
#include "sm90/backward_registers.cuh"
#include "sm90/backward_sequence_ends.cuh"
#include "sm90/pack.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

// Maps a thread's groups of eight columns to groups of the row; here they are the same.
struct EveryColumn {
    __device__ int place(int eight) const { return eight; }
};

// Writes a warp's 16 rows to shared memory, in 16 bits.
template <int kPanelCount, int kPanelBytes, int kCount, typename Columns>
__device__ inline void write_rows(unsigned memory, Columns columns, const float (&sums)[kCount],
                                  float factor) {
    int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (mod::kPersistent) lane = computed_again(lane);
    if constexpr (kSaves.lane_again || kSaves.places_again) lane = lane_again();
#pragma unroll
    for (int i = 0; i < kCount; i += 8) {
        // Each lane provides the address of a row of one of four 8 x 8 matrices, two of them side
        // by side.
        const int chunk = columns.place(i / 4) + lane / 16;
        const int panel = place_of_panel(chunk / 8, kPanelCount);
        const unsigned to =
            memory + panel * kPanelBytes + lane % 16 * kRowBytes + ((chunk % 8) ^ (lane % 8)) * 16;
        const auto pair = [&](int at) {
            return pack(mod::Element{}, sums[i + at] * factor, sums[i + at + 1] * factor);
        };
        store_matrices(to, pair(0), pair(2), pair(4), pair(6));
    }
    publish_shared();
}

// Called by one lane: stores, through TMA, what the warp has written to shared memory.
template <int kPanelCount, int kPanelBytes>
__device__ inline void store_rows(const TensorMap& map, Corner corner, unsigned memory) {
#pragma unroll
    for (int panel = 0; panel < kPanelCount; ++panel) {
        store_box(map, corner, memory + place_of_panel(panel, kPanelCount) * kPanelBytes);
        corner.column += kPanelColumns;
    }
}

// Stores a warp's 16 rows as floats, or adds them, to a tensor of any strides. They go through
// shared memory, 32 columns at a time, so that a loop can store them: written out for each
// register, they would be a third of the kernel's text. memory: 16 rows of kRowBytes, the warp's
// own.
template <int kCount, typename Columns>
__device__ inline void store_floats(const TensorArgument& tensor, unsigned flags, Corner corner,
                                    int column_count, int length, Columns columns,
                                    const float (&sums)[kCount], float factor, unsigned memory) {
    constexpr int kGroups = kRowBytes / 32; // of eight columns, that fit in a row
    const int lane = lane_again(); // or masks would spill in the loop over queries
    const unsigned row_of_lane = memory + lane / 4 * kRowBytes + lane % 2 * 8;
    const int rows = min(length - corner.row, 16);
#pragma unroll
    for (int first = 0; first < kCount / 4; first += kGroups) {
#pragma unroll
        for (int group = first; group < min(first + kGroups, kCount / 4); ++group) {
            // Chunks of 16 bytes are swizzled as rows of 16 bits are.
            const int chunk = (group - first) * 2 + lane % 4 / 2;
            const unsigned to = row_of_lane + (chunk ^ lane / 4) * 16;
            store_shared(to, sums[4 * group], sums[4 * group + 1]);
            store_shared(to + 8 * kRowBytes, sums[4 * group + 2], sums[4 * group + 3]);
        }
        __syncwarp();
        const int group = first + lane / 8;
        const int column = columns.place(group) * 8 + lane % 8;
        if (group < kCount / 4 && column < column_count) {
            float* to = static_cast<float*>(tensor.data) + corner.batch * tensor.stride_b +
                        corner.head * tensor.stride_h + corner.row * tensor.stride_s +
                        column * tensor.stride_d;
#pragma unroll 1
            for (int row = 0; row < rows; ++row, to += tensor.stride_s) {
                const unsigned from =
                    memory + row * kRowBytes + (lane / 4 ^ row % 8) * 16 + lane % 4 * 4;
                const float sum = __uint_as_float(load_shared_word(from));
                *to = sum * factor + (flags & kOutputAccumulate ? *to : 0);
            }
        }
        __syncwarp();
    }
    publish_shared();
}

// Writes one warp's dk and dv from registers. In a persistent kernel another thread stores them to
// global memory.
struct WarpOutput {
    const AttentionArguments& attention;
    const BackwardTensorMaps& maps;
    const Shared shared;
    const int warpgroup, warp, lane; // among the consumers, in the warpgroup, in the warp

    // Called when the warpgroup's products with values have ended.
    template <int kCount>
    __device__ void store_values(const KeyTile& keys, const float (&dv)[kCount]) const {
        const unsigned memory = shared.d_values(warpgroup) + own_rows();
        store<mod::kHeadDimV, kDValuesPanel>(attention.dv, attention.dv_flags, maps.dv, keys,
                                             memory, dv, 1);
        if constexpr (mod::kPersistent) shared.d_values_full().arrive();
    }
    // Called when products with keys have ended in both warpgroups.
    template <int kCount>
    __device__ void store_keys(const KeyTile& keys, int slot, const float (&dk)[kCount]) const {
        const unsigned memory = shared.d_keys(warpgroup, slot) + own_rows();
        store<mod::kHeadDim, kKeyPanel>(attention.dk, attention.dk_flags, maps.dk, keys, memory, dk,
                                        attention.scale);
        // Every thread arrives: each has read which keys these are.
        if constexpr (mod::kPersistent)
            shared.d_keys_full().arrive();
        else if (lane == 0)
            wait_for_store_reads();
    }

  private:
    // Returns the offset of the warp's rows; computed again for each tile of keys, not held.
    __device__ unsigned own_rows() const {
        return (mod::kPersistent ? computed_again(16 * warp) : 16 * warp) * kRowBytes;
    }

    template <int kColumns, int kPanelBytes, int kCount>
    __device__ void store(const TensorArgument& tensor, unsigned flags, const TensorMap& map,
                          const KeyTile& keys, unsigned memory, const float (&sums)[kCount],
                          float factor) const {
        const Corner corner{keys.entry(attention), keys.h_kv,
                            keys.first_row(attention) + 64 * warpgroup + 16 * warp, 0};
        const bool is_float = (flags & kOutputF32) != 0;
        if (is_float)
            store_floats(tensor, flags, corner, kColumns, keys.end_row(attention), EveryColumn{},
                         sums, factor, memory);
        else
            write_rows<panels(kColumns), kPanelBytes>(memory, EveryColumn{}, sums, factor);
        __syncwarp();
        if (!is_float)
            SequenceEnds::store_box_rows<kColumns, kPanelBytes>(attention, tensor, keys, corner,
                                                                16 * warp, memory);
        if (!mod::kPersistent && lane == 0 && !is_float)
            store_rows<panels(kColumns), kPanelBytes>(map, corner, memory);
    }
};

// In persistent kernels the thread that adds dq's pieces stores dk and dv too: TMA performs the
// earlier additions first anyway. which: index among the block's tiles of keys.
__device__ inline void store_gradients(const AttentionArguments& attention,
                                       const BackwardTensorMaps& maps, Shared shared,
                                       const KeyTile& keys, unsigned which) {
    const auto corner = [&](int warpgroup) {
        return Corner{keys.entry(attention), keys.h_kv, keys.first_row(attention) + 64 * warpgroup,
                      0};
    };
    const auto stores = [&](int warpgroup) {
        return SequenceEnds::stores_box(attention, keys, corner(warpgroup).row);
    };
    shared.d_values_full().wait(which % 2);
    if (!(attention.dv_flags & kOutputF32))
#pragma unroll
        for (int i = 0; i < kConsumers; ++i)
            if (stores(i))
                store_rows<kValuePanels, kDValuesPanel>(maps.dv, corner(i), shared.d_values(i));
    end_additions();
    shared.d_keys_full().wait(which % 2);
    if (!(attention.dk_flags & kOutputF32))
#pragma unroll
        for (int i = 0; i < kConsumers; ++i)
            if (stores(i))
                store_rows<kPanels, kKeyPanel>(
                    maps.dk, corner(i), shared.d_keys(i, static_cast<int>(which % kKeySlots)));
    end_additions();
    wait_for_additions<1>();
    shared.d_values_read().arrive();
    wait_for_additions<0>();
}

} // namespace sm90
