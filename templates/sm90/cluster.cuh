// Pairs of blocks on neighbouring multiprocessors, launched as clusters: what both need is loaded
// once (PTX ISA, "cluster").
#pragma once

#include "sm90/tma.cuh"

namespace sm90 {

constexpr bool kMayShareLoads = mod::kSharesLoads;

// Blocks that share what they load: 1 or 2, as the launch says.
__device__ inline int sharers() {
    if constexpr (!kMayShareLoads) return 1;
    int count;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(count));
    return count;
}
__device__ inline int rank_of_sharer() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// All threads of all sharers. None may leave, or load for another, before all have come.
__device__ inline void synchronize_sharers() {
    if constexpr (kMayShareLoads)
        asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// At the barrier that another block has in the same place. It tells of reads of the matrix
// instructions alone, which are complete: what the thread itself wrote is not published.
__device__ inline void arrive_at(Barrier barrier, int rank) {
    asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier.address),
                 "r"(rank)
                 : "memory");
}

// To the same place in each of the sharers, and to the barrier that each has in the same place.
__device__ inline void load_box_for(unsigned short sharers, unsigned to, const TensorMap& map,
                                    Corner from, Barrier arrival) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
                 "l"(&map), "r"(arrival.address), "r"(from.column), "r"(from.row), "r"(from.head),
                 "r"(from.batch), "h"(sharers)
                 : "memory");
}

} // namespace sm90
