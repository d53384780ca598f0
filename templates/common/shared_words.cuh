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
__device__ inline void store_shared_long(unsigned to, unsigned long long x) {
    asm volatile("st.shared.u64 [%0], %1;" ::"r"(to), "l"(x) : "memory");
}
__device__ inline unsigned long long load_shared_long(unsigned from) {
    unsigned long long x;
    asm volatile("ld.shared.u64 %0, [%1];" : "=l"(x) : "r"(from) : "memory");
    return x;
}
// Stores x where there is 0, and returns what was there before: atomically.
__device__ inline unsigned long long set_shared_if_zero(unsigned to, unsigned long long x) {
    unsigned long long before;
    asm volatile("atom.shared.cas.b64 %0, [%1], 0, %2;"
                 : "=l"(before)
                 : "r"(to), "l"(x)
                 : "memory");
    return before;
}

// Atomic additions that return nothing.
__device__ inline void add_float(float* to, float x) {
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}
__device__ inline void add_shared(unsigned to, int x) {
    asm volatile("red.shared.add.s32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ inline void add_shared(unsigned to, float x) {
    asm volatile("red.shared.add.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
