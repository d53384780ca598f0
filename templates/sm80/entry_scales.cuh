// Loads the scales of entries, such as pages, into shared memory where keys are not in order: a
// float for each key and value of a tile.
#pragma once

#include "common/select.h"
#include "common/sequence_length.cuh"
#include "sm80/copy.cuh"

namespace sm80 {

struct NoScaleSource {
    __device__ NoScaleSource(const AttentionArguments&, const SequenceLength&, int h_kv) {}
    template <typename Shared>
    __device__ void load(const Shared&, int step, int first_key, int rows_left) const {}
};

template <int kThreads> class EntryScaleSource {
  public:
    __device__ EntryScaleSource(const AttentionArguments& attention, const SequenceLength& length,
                                int h_kv)
        : attention_(attention), keys_(keys_of(attention, length)), h_kv_(h_kv) {}

    template <typename Shared>
    __device__ void load(const Shared& shared, int step, int first_key, int rows_left) const {
        const ScaleArgument &of_keys = attention_.k_scale, &of_values = attention_.v_scale;
        if (of_keys.stride_b == 0 && of_values.stride_b == 0) return;
        for (int row = static_cast<int>(threadIdx.x); row < mod::kKeyTile; row += kThreads) {
            const int key = first_key + min(row, rows_left - 1);
            const int entry = keys_.place(key).entry;
            if (of_keys.stride_b != 0)
                copy_async<4>(shared.key_scales(step) + 4 * row, of_keys.at(entry, h_kv_),
                              row < rows_left);
            if (of_values.stride_b != 0)
                copy_async<4>(shared.value_scales(step) + 4 * row, of_values.at(entry, h_kv_),
                              row < rows_left);
        }
    }

  private:
    const AttentionArguments& attention_;
    const mod::Layouts::Keys keys_;
    const int h_kv_;
};

template <int kThreads>
using ScaleSource = Select<sizeof(mod::KeyElement) == 1 && !mod::Layouts::Keys::kAreInOrder,
                           EntryScaleSource<kThreads>, NoScaleSource>;

} // namespace sm80
