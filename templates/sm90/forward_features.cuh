// Features that a program may need beside queries, keys and values. Each is a class with the same
// members whether it is there or not: its barriers, what threads beside the producer do for it, and
// what consumers do. The kernel calls them all, and those of an absent feature are empty.
#pragma once

#include "sm90/forward_dense_bias.cuh"
#include "sm90/forward_index_2d.cuh"
#include "sm90/forward_key_addend.cuh"
#include "sm90/forward_key_blocks.cuh"
#include "sm90/forward_key_copies.cuh"
#include "sm90/forward_key_kinds.cuh"
#include "sm90/forward_shifts.cuh"
#include "sm90/forward_skips.cuh"
#include "sm90/forward_tables.cuh"
#include "sm90/forward_tabulated.cuh"

namespace sm90 {

// One thread initialises all barriers. What threads read they release themselves; of what MMAs
// read, a warp releases a stage with one arrival.
__device__ inline void initialise_barriers(const Shared& shared, int bias_producers) {
    shared.queries.initialise(1, kConsumerThreads + bias_producers + Index2dRows::kProducers +
                                     KeyKinds::kProducers + TableStages::kProducers);
    shared.keys.initialise(CopiedKeys::kKeyProducers + Index2dRows::kProducersWithKeys +
                               KeyKinds::kProducers,
                           kConsumerThreads / 32);
    shared.values.initialise(CopiedKeys::kValueProducers, kConsumerThreads / 32);
    CopiedKeys::initialise(shared);
    Biases::initialise(shared, bias_producers);
    Index2dRows::initialise(shared);
    TabulatedValues::initialise(shared);
    TableStages::initialise(shared);
    publish_barriers();
}

} // namespace sm90
