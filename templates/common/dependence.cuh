// Kernels that start before the one ahead of them in the stream has ended (PTX ISA,
// "griddepcontrol"). Where the host has not asked for it, and on GPUs before Hopper, these do
// nothing.
#pragma once

// The next kernel may start when all blocks of this one have come here, and there is room.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Until the kernel ahead has ended, and what it wrote is visible.
__device__ inline void wait_for_kernel_ahead() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
