// Memory instructions: asynchronous copies from global to shared memory, and shared stores.
// Shared memory is named by its 32-bit address in the shared window.
#pragma once

#include "common/again.cuh"
#include "common/eight_bits.cuh"
#include "common/element.cuh"
#include "common/instructions.cuh"

namespace sm80 {

__device__ inline unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Copies kBytes (4, 8 or 16); writes zeros and reads nothing when !valid.
template <int kBytes> __device__ inline void copy_async(unsigned to, const void* from, bool valid) {
    const int bytes = valid ? kBytes : 0;
    if constexpr (kBytes == 16) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                     "r"(bytes));
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from),
                     "n"(kBytes), "r"(bytes));
    }
}

// Ends a group of this thread's copies.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all of this thread's groups but the last kPending.
template <int kPending> __device__ inline void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// Waits for all of this thread's copies. Other threads' are visible after a barrier that follows.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ inline void store_shared(unsigned to, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
__device__ inline void store_shared(unsigned to, flexc_f16 x) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(x.bits) : "memory");
}
__device__ inline void store_shared(unsigned to, flexc_bf16 x) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(x.bits) : "memory");
}
// Stores one register of a matrix fragment: two 16-bit elements.
__device__ inline void store_shared(unsigned to, unsigned x) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ inline void store_shared(unsigned to, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}

__device__ inline void store_shared(unsigned to, float x, float y, float z, float w) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x), "f"(y), "f"(z),
                 "f"(w)
                 : "memory");
}
__device__ inline void store_shared_byte(unsigned to, unsigned char x) {
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(to), "r"(static_cast<unsigned>(x)) : "memory");
}
__device__ inline void store_shared(unsigned to, flexc_e4m3 x) { store_shared_byte(to, x.bits); }
__device__ inline void store_shared(unsigned to, flexc_e5m2 x) { store_shared_byte(to, x.bits); }
__device__ inline void store_shared(unsigned to, signed char x) {
    store_shared_byte(to, static_cast<unsigned char>(x));
}

__device__ inline void load_shared(unsigned& x, unsigned& y, unsigned from) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "r"(from));
}
__device__ inline void load_shared(float& x, float& y, unsigned from) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(from));
}
__device__ inline void load_shared(float (&x)[4], unsigned from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(from));
}

} // namespace sm80
