// Loads and stores of words in shared memory, and additions to shared and global memory.
#pragma once

__device__ inline void store_shared(unsigned to, int x, int y, int z, int w) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x), "r"(y), "r"(z),
                 "r"(w)
                 : "memory");
}
__device__ inline void load_shared(unsigned from, int& x, int& y, int& z, int& w) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
                 : "r"(from)
                 : "memory");
}
__device__ inline void store_shared_word(unsigned to, unsigned x) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ inline unsigned load_shared_word(unsigned from) {
    unsigned word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    return word;
}

// Atomic additions that return nothing.
__device__ inline void add_float(float* to, float x) {
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}
__device__ inline void add_shared(unsigned to, int x) {
    asm volatile("red.shared.add.s32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
