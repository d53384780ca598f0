// Barriers: those in shared memory that count arrivals and bytes (PTX ISA, "mbarrier"), and the
// numbered ones of a block ("barrier").
#pragma once

namespace sm90 {

// Completes a phase after a fixed number of arrivals, and after all bytes that these announced.
struct Barrier {
    unsigned address; // shared

    __device__ void initialise(int arrivals) const {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals));
    }
    __device__ void arrive() const {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
    }
    // Announces bytes that copies will bring, beside those of an arrival.
    __device__ void expect(int bytes) const {
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(address),
                     "r"(bytes)
                     : "memory");
    }
    // Arrives, and announces bytes that copies will bring.
    __device__ void arrive_expecting(int bytes) const {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address),
                     "r"(bytes)
                     : "memory");
    }
    // Returns nonzero if the phase of this parity is complete. It is no bool, as a loop would
    // convert it to one in each iteration.
    __device__ unsigned is_complete(unsigned parity) const {
        unsigned complete;
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(complete)
                     : "r"(address), "r"(parity)
                     : "memory");
        return complete;
    }
    // Waits until the phase of this parity is complete.
    __device__ void wait(unsigned parity) const {
        unsigned complete;
        do {
            asm volatile("{\n.reg .pred p;\n"
                         "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                         "selp.u32 %0, 1, 0, p;\n}"
                         : "=r"(complete)
                         : "r"(address), "r"(parity)
                         : "memory");
        } while (complete == 0);
    }
};

// Makes initialised barriers visible to TMA.
__device__ inline void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives once for all that the threads of a warp have done before. Called by the whole warp.
__device__ inline void arrive_as_warp(Barrier barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier.arrive();
}

// Numbered barriers: `threads` counts those that wait and those that only arrive.
__device__ inline void synchronize(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// The same for threads that come from different places in a kernel: "bar" is for threads that all
// execute the same instruction.
__device__ inline void synchronize_roles(int barrier, int threads) {
    asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

} // namespace sm90
