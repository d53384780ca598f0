// TMA: copies boxes of tensors to shared memory and back (PTX ISA, "cp.async.bulk.tensor"), and
// plain rows of bytes.
#pragma once

#include "common/tensor_maps.h"
#include "sm90/barrier.cuh"

namespace sm90 {

// Where a box starts: [batch, head, row, column].
struct Corner {
    int batch, head, row, column;
};

__device__ inline void prefetch(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Loads a box. What is outside the tensor arrives as zeros, and counts in the barrier's bytes.
__device__ inline void load_box(unsigned to, const TensorMap& map, Corner from, Barrier arrival) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(&map), "r"(arrival.address), "r"(from.column), "r"(from.row), "r"(from.head),
                 "r"(from.batch)
                 : "memory");
}

// Loads a box of a matrix.
__device__ inline void load_box(unsigned to, const TensorMap& map, int row, int column,
                                Barrier arrival) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(&map), "r"(arrival.address), "r"(column), "r"(row)
                 : "memory");
}

// Prefetches a box to the L2 cache.
__device__ inline void prefetch_box(const TensorMap& map, Corner from) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(&map),
                 "r"(from.column), "r"(from.row), "r"(from.head), "r"(from.batch)
                 : "memory");
}

// Stores a box. What is outside the tensor is not written.
__device__ inline void store_box(const TensorMap& map, Corner to, unsigned from) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], "
                 "[%1];" ::"l"(&map),
                 "r"(from), "r"(to.column), "r"(to.row), "r"(to.head), "r"(to.batch)
                 : "memory");
}
// Waits until this thread's stores have read their shared memory.
__device__ inline void wait_for_store_reads() {
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Loads bytes in a row, a multiple of 16.
__device__ inline void load_bytes(unsigned to, const void* from, int bytes, Barrier arrival) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(arrival.address)
                 : "memory");
}

// Adds floats, to[i] += from[i], in no order.
__device__ inline void add_bytes(float* to, unsigned from, int bytes) {
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
        "r"(from), "r"(bytes)
        : "memory");
}
// Stores floats, to[i] = from[i]; in one group with additions.
__device__ inline void store_bytes(float* to, unsigned from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}
// Makes additions since the last call one group.
__device__ inline void end_additions() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most kPending groups have still to read their shared memory.
template <int kPending> __device__ inline void wait_for_additions() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Makes what this thread wrote to shared memory visible to TMA and to wgmma.
__device__ inline void publish_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

} // namespace sm90
