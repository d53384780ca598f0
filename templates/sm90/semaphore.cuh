// Counters in memory by which blocks wait for what others have given to TMA.
#pragma once

namespace sm90 {

__device__ inline int load_acquiring(const int* counter) {
    int now;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    return now;
}

// Returns before the counter has been read: the first use of the result waits.
__device__ inline int load_relaxed(const int* counter) {
    int now;
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    return now;
}

// Takes a row block if no block has before, and returns its state (sm90/arguments.h) before that.
__device__ inline int take_row_block(int* state) {
    int before;
    asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(before)
                 : "l"(state), "n"(kRowBlockUntouched), "n"(kRowBlockTaken)
                 : "memory");
    return before;
}
// Releases what this thread has stored, when the stores are complete and have not only been read.
__device__ inline void report_stored(int* state) {
    asm volatile("cp.async.bulk.wait_group 0;\n"
                 "fence.proxy.async;\n"
                 "st.release.gpu.global.s32 [%0], %1;" ::"l"(state),
                 "n"(kRowBlockStored)
                 : "memory");
}

// Waits for the counter, and acquires what the blocks before have added, for TMA's next additions.
__device__ inline void wait_for_semaphore(const int* counter, int turn) {
    while (load_acquiring(counter) < turn)
        ;
    asm volatile("fence.proxy.async;" ::: "memory");
}
// Releases this thread's additions, when they are complete and have not only been read.
__device__ inline void release_semaphore(int* counter) {
    asm volatile("cp.async.bulk.wait_group 0;\n"
                 "fence.proxy.async;\n"
                 "red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter)
                 : "memory");
}

} // namespace sm90
