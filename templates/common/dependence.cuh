// Kernels that start before the one ahead of them in the stream has ended (PTX ISA,
// "griddepcontrol"). Where the host has not asked for it, and on GPUs before Hopper, these do
// nothing.
#pragma once

// Lets the next kernel start once all blocks of this one have called this and there is room.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until the kernel ahead in the stream has ended and its writes are visible.
__device__ inline void wait_for_kernel_ahead() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
