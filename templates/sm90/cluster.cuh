// Blocks of a cluster, which share what they load.
#pragma once

#include "common/tensor_maps.h"
#include "sm90/tma.cuh"

namespace sm90 {

__device__ inline int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ inline void synchronize_cluster() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
__device__ inline void arrive_at(Barrier barrier, int rank) {
    asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier.address), "r"(rank) : "memory");
}
__device__ inline void load_box_everywhere(unsigned to, const TensorMap& map, Corner from, Barrier arrival) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
                 "l"(&map), "r"(arrival.address), "r"(from.column), "r"(from.row), "r"(from.head),
                 "r"(from.batch), "h"(static_cast<unsigned short>(3))
                 : "memory");
}

} // namespace sm90
