// Lengths of a tile's batch entry, as the producer hands them to consumers.
#pragma once

#include "common/select.h"
#include "common/sequence_length.cuh"
#include "sm90/forward_layout.cuh"

namespace sm90 {

struct LengthsOfLaunch {
    static __device__ void store(const Shared&, int, const SequenceLength&) {}
    static __device__ DenseLength load(const AttentionArguments& attention, const Shared&, int,
                                       int batch) {
        return {attention, batch};
    }
};

// Lengths are stored beside the task, because reading them from global memory would take as long as
// several products. Of keys, only their number is.
struct LengthsOfRequest {
    static_assert(ForwardLayout::kLengthBytes >= 20);

    static __device__ void store(const Shared& shared, int stage, const RequestLength& length) {
        const unsigned to = shared.lengths + stage * ForwardLayout::kLengthBytes;
        const Sequence& sequence = length.sequence();
        store_shared(to, sequence.q_len, sequence.q_rows, sequence.q_start, sequence.kv_len);
        store_shared_word(to + 16, static_cast<unsigned>(sequence.q_row));
    }
    static __device__ RequestLength load(const AttentionArguments&, const Shared& shared, int stage,
                                         int request) {
        const unsigned from = shared.lengths + stage * ForwardLayout::kLengthBytes;
        Sequence sequence{};
        load_shared(from, sequence.q_len, sequence.q_rows, sequence.q_start, sequence.kv_len);
        sequence.q_row = load_shared_word(from + 16);
        return {sequence, request};
    }
};

using TaskLengths = Select<mod::Layouts::kQueriesAreRagged, LengthsOfRequest, LengthsOfLaunch>;

} // namespace sm90
