// Reads a thread's indices from special registers at each call. The compiler does not see that they
// are values which it has read before, so it computes what depends on them again instead of keeping
// it in registers.
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

// Returns x, but hides that from the compiler: what depends on it is computed again in each
// iteration of a loop instead of being kept in registers.
template <typename T> __device__ inline T computed_again(T x) {
    if constexpr (sizeof(T) == 8)
        asm volatile("" : "+l"(x));
    else
        asm volatile("" : "+r"(x));
    return x;
}
