// Groups of a warpgroup's products (PTX ISA, "wgmma").
#pragma once

namespace sm90 {

// Called before the first MMA after other instructions have touched its registers.
__device__ inline void fence_wgmma() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Makes products since the last call one group.
__device__ inline void commit_wgmma() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending groups are under way.
template <int kPending> __device__ inline void wait_for_wgmma() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

} // namespace sm90
