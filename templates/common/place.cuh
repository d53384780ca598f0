// The head that a block computes, with what the program computes once for it.
#pragma once

#include "common/sequence_length.cuh"
#include "common/visible_band.cuh"
#include "mod.cuh"

// One (b, h), with the program's values for the launch and the head.
struct HeadValues {
    int b, h, h_kv;
    mod::Launch launch;
    mod::Head head;

    __device__ HeadValues(const mod::Arguments& arguments, int batch, int head_index, int kv_head)
        : b(batch), h(head_index), h_kv(kv_head), launch(mod::at_launch(arguments)),
          head(mod::at_head(arguments, launch, b, h, h_kv)) {}
};

// A head with its visible band: the range of keys that each of its queries may see.
struct HeadPlace : HeadValues, VisibleBand {
    __device__ HeadPlace(const AttentionArguments& attention, const mod::Arguments& arguments,
                         int index)
        : HeadPlace(attention, arguments, index / attention.heads, index % attention.heads,
                    index % attention.heads / (attention.heads / attention.kv_heads)) {}

    __device__ HeadPlace(const AttentionArguments& attention, const mod::Arguments& arguments,
                         int batch, int head_index, int kv_head)
        : HeadPlace(arguments, SequenceLength(attention, batch), head_index, kv_head) {}

    // For a batch entry whose lengths are already loaded.
    template <typename Length>
    __device__ HeadPlace(const mod::Arguments& arguments, const Length& length, int head_index,
                         int kv_head)
        : HeadValues(arguments, length.b(), head_index, kv_head) {
        find(mod::band(arguments, launch, head, b, h, h_kv), length.q_offset(), length.kv_offset());
        find_ends(arguments, length);
    }

    // The same with band limits that another thread has computed.
    __device__ HeadPlace(const AttentionArguments& attention, const mod::Arguments& arguments,
                         int batch, int head_index, int kv_head, int lowest, int highest)
        : HeadValues(arguments, batch, head_index, kv_head) {
        low = lowest;
        high = highest;
        find_ends(arguments, SequenceLength(attention, b));
    }

  private:
    template <typename Length>
    __device__ void find_ends(const mod::Arguments& arguments, const Length& length) {
        find_clamps(mod::clamps(arguments, launch, head, b, h, h_kv), length.q_offset(),
                    length.kv_offset());
    }
};

// Calls visit(element) with the program's element at a query and a key, given as rows of the
// tensors.
template <typename Visit>
__device__ inline auto visit_element(const AttentionArguments& attention,
                                     const mod::Arguments& arguments, const HeadPlace& place,
                                     int query, int key, Visit visit) {
    const SequenceLength length(attention, place.b);
    const int q = query + static_cast<int>(length.q_offset());
    const int kv = key + static_cast<int>(length.kv_offset());
    const mod::Row row =
        mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv, q);
    const mod::Column column =
        mod::at_column(arguments, place.launch, place.head, place.b, place.h, place.h_kv, kv);
    return visit(mod::At{arguments, place.launch, place.head, row, column, place.b, place.h,
                         place.h_kv, q, kv});
}
