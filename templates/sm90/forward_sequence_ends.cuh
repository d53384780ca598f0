// Handles tiles that reach past the end of their sequence. TMA loads zeros from behind a tensor,
// but behind a request of ragged tensors are the rows of another request, or rows that nobody has
// written.
#pragma once

#include "common/select.h"
#include "common/sequence_length.cuh"
#include "sm90/forward_layout.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

struct DenseSequenceEnds {
    template <typename Consumer>
    static __device__ void clear_queries(const Consumer&, const SequenceLength&, int, unsigned) {}
    template <typename Consumer>
    static __device__ void clear_values(const Consumer&, const SequenceLength&, int) {}
};

// Each consumer warpgroup overwrites rows past the end with zeros. All write the same to values,
// which they share.
struct RaggedSequenceEnds {
    // Clears queries, so that a request's results do not depend on what follows it in memory.
    // first_row: the warpgroup's first row; queries: address of its rows in shared memory.
    template <typename Consumer>
    static __device__ void clear_queries(const Consumer& consumer, const SequenceLength& length,
                                         int first_row, unsigned queries) {
        if (first_row + 64 > length.queries())
            clear_rows<kPanels, kQueryPanel>(consumer.thread, queries,
                                             max(length.queries() - first_row, 0), 64);
    }
    // Clears values before PV: P behind the end is 0, but 0 times NaN or infinity is NaN.
    template <typename Consumer>
    static __device__ void clear_values(const Consumer& consumer, const SequenceLength& length,
                                        int tile) {
        if constexpr (kCopiesKeys) return; // copied values have zeros there
        const int left = length.keys() - tile * mod::kKeyTile;
        if (left >= mod::kKeyTile) return;
        consumer.wait_for_value();
        clear_rows<kValuePanels, kKeyPanel>(consumer.thread, consumer.value_address(), left,
                                            mod::kKeyTile);
    }

  private:
    // Clears rows first ... end - 1 of each panel. Called by all threads of a warpgroup.
    template <int kCount, int kPanelBytes>
    static __device__ void clear_rows(const ConsumerThread& thread, unsigned panels, int first,
                                      int end) {
        constexpr int kBytes = 16; // of one store
        const int start = first * kRowBytes + (32 * thread.warp + thread.lane) * kBytes;
#pragma unroll 1
        for (int at = start; at < end * kRowBytes; at += 128 * kBytes)
#pragma unroll
            for (int panel = 0; panel < kCount; ++panel)
                store_shared(panels + panel * kPanelBytes + at, 0, 0, 0, 0);
        publish_shared();
        synchronize(1 + kConsumers + thread.warpgroup, 128);
    }
};

using SequenceEnds = Select<mod::Layouts::kQueriesAreRagged, RaggedSequenceEnds, DenseSequenceEnds>;

} // namespace sm90
