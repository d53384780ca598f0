// A thread's own copies to shared memory (PTX ISA, "cp.async").
#pragma once

#include "sm90/barrier.cuh"

namespace sm90 {

// Copies 16 bytes.
__device__ inline void copy_async(unsigned to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Copies 16 bytes, of which the first `bytes` are read; the others become zeros.
__device__ inline void copy_async(unsigned to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}
// Copies 4 bytes.
__device__ inline void copy_word_async(unsigned to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
// Copies kBytes bytes, 16 or 4.
template <int kBytes> __device__ void copy_piece_async(unsigned to, const void* from);
template <> __device__ inline void copy_piece_async<16>(unsigned to, const void* from) {
    copy_async(to, from);
}
template <> __device__ inline void copy_piece_async<4>(unsigned to, const void* from) {
    copy_word_async(to, from);
}
// Waits until all earlier copies of this thread have completed.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Arrives at the barrier when all earlier copies of this thread have completed.
__device__ inline void arrive_after_copies(Barrier barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier.address)
                 : "memory");
}
__device__ inline void store_shared_element(unsigned to, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
__device__ inline void store_shared_element(unsigned to, int x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
template <typename E> __device__ inline void store_shared_element(unsigned to, E x) {
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(x.bits) : "memory");
}

} // namespace sm90
