// Kernels that start before the one ahead of them in the stream has ended (PTX ISA,
// "griddepcontrol"). Where the host has not asked for it, these do nothing.
#pragma once

namespace sm90 {

// The next kernel may start when all blocks of this one have come here, and there is room.
__device__ inline void let_next_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// Until the kernel ahead has ended, and what it wrote is visible.
__device__ inline void wait_for_kernel_ahead() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

} // namespace sm90
