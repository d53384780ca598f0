// Handles tiles of the backward that reach past the end of their sequence. TMA loads zeros from
// behind a tensor and writes nothing there, but behind a request of ragged tensors are the rows of
// another request.
#pragma once

#include "common/select.h"
#include "sm90/backward_key_tile.cuh"
#include "sm90/copy_rows.cuh"

namespace sm90 {

struct DenseSequenceEnds {
    template <typename Consumer> static __device__ void clear_keys(const Consumer&) {}
    template <typename Consumer> static __device__ void clear_queries(const Consumer&, int) {}

    static __device__ bool stores_box(const AttentionArguments&, const KeyTile&, int) {
        return true;
    }
    template <int kColumns, int kPanelBytes>
    static __device__ void store_box_rows(const AttentionArguments&, const TensorArgument&,
                                          const KeyTile&, Corner, int, unsigned) {}
};

struct RaggedSequenceEnds {
    // P and dS of rows behind an end are 0, but 0 times NaN or infinity is NaN. So each warpgroup
    // overwrites these rows of keys, values, queries and d_out with zeros; both write the same.
    template <typename Consumer> static __device__ void clear_keys(const Consumer& consumer) {
        const KeyTile& keys = consumer.keys();
        const int left = keys.length(consumer.attention).keys() - keys.first_kv;
        if (left >= mod::kKeyTile) return;
        const Shared& shared = consumer.shared;
        consumer.key_tiles.wait_for_keys(shared, consumer.step);
        consumer.key_tiles.wait_for_values(shared, consumer.step);
        const int slot = Shared::slot_offset(consumer.key_tiles.slot());
        clear_rows<kPanels, kKeyPanel>(shared.base + kLayout.keys + slot, left, mod::kKeyTile);
        clear_rows<kValuePanels, kKeyPanel>(shared.base + kLayout.values, left, mod::kKeyTile);
        publish(consumer.warpgroup);
    }
    // Called when a tile of queries has arrived.
    template <typename Consumer>
    static __device__ void clear_queries(const Consumer& consumer, int tile) {
        const int left =
            consumer.keys().length(consumer.attention).queries() - tile * mod::kQueryTile;
        if (left >= mod::kQueryTile) return;
        const Shared& shared = consumer.shared;
        const int stage = static_cast<int>(consumer.step % 2);
        shared.d_out_full(stage).wait(consumer.step / 2 % 2);
        clear_rows<kPanels, kQueryPanel>(
            shared.base + kLayout.queries + stage * kPanels * kQueryPanel, left, mod::kQueryTile);
        clear_rows<kValuePanels, kQueryPanel>(shared.base + kLayout.d_out +
                                                  stage * kValuePanels * kQueryPanel,
                                              left, mod::kQueryTile);
        publish(consumer.warpgroup);
    }

    // Returns whether TMA may store a warpgroup's 64 rows of dk and dv, from first_row on; else
    // each warp stores those of its rows that are inside.
    static __device__ bool stores_box(const AttentionArguments& attention, const KeyTile& keys,
                                      int first_row) {
        return first_row + 64 <= keys.end_row(attention);
    }
    template <int kColumns, int kPanelBytes>
    static __device__ void store_box_rows(const AttentionArguments& attention,
                                          const TensorArgument& tensor, const KeyTile& keys,
                                          Corner corner, int rows_before, unsigned memory) {
        if (stores_box(attention, keys, corner.row - rows_before)) return;
        const int left = keys.end_row(attention) - corner.row;
        copy_rows<kColumns, kPanelBytes>(tensor, corner.head, corner.row, min(left, 16), memory);
    }

  private:
    // Clears rows first ... end - 1 of each panel. Called by all threads of a warpgroup.
    template <int kCount, int kPanelBytes>
    static __device__ void clear_rows(unsigned panels, int first, int end) {
        constexpr int kBytes = 16; // of one store
        first = max(first, 0);
#pragma unroll 1
        for (int at = first * kRowBytes + thread_again() % 128 * kBytes; at < end * kRowBytes;
             at += 128 * kBytes)
#pragma unroll
            for (int panel = 0; panel < kCount; ++panel)
                store_shared(panels + panel * kPanelBytes + at, 0, 0, 0, 0);
    }
    static __device__ void publish(int warpgroup) {
        publish_shared();
        synchronize(kSequenceEndsBarrier + warpgroup, 128);
    }
};

using SequenceEnds = Select<mod::Layouts::kKeysAreRagged, RaggedSequenceEnds, DenseSequenceEnds>;

} // namespace sm90
