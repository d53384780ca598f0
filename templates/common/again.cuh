// Where a thread is, asked of the hardware each time: unknown to the compiler as values that it has
// read before, so that what is computed from them is computed again, not kept in registers.
#pragma once

__device__ inline int block_index_again() {
    int index;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
    return index;
}
__device__ inline int thread_again() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}
__device__ inline int lane_again() {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

// The same value, of unknown origin: what depends on it is computed again in each iteration of a
// loop rather than kept in registers all along.
template <typename T> __device__ inline T computed_again(T x) {
    if constexpr (sizeof(T) == 8)
        asm volatile("" : "+l"(x));
    else
        asm volatile("" : "+r"(x));
    return x;
}
