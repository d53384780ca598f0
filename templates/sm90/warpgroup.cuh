// A warpgroup, 128 threads that multiply together: its registers, and what keeps compilers from
// moving work across its MMAs.
#pragma once

#include "common/again.cuh"
#include "common/shared_words.cuh"

namespace sm90 {

using ::load_shared;
using ::store_shared;

__device__ inline unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Store, and load, four 8 x 8 matrices of 16-bit elements in the layout of accumulators. Lane i
// provides the address of row i % 8 of matrix i / 8.
__device__ inline void store_matrices(unsigned to, unsigned x, unsigned y, unsigned z, unsigned w) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

__device__ inline void load_matrices(unsigned from, unsigned& x, unsigned& y, unsigned& z,
                                     unsigned& w) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
                 : "r"(from)
                 : "memory");
}

// Stores the same with each matrix transposed.
__device__ inline void store_transposed(unsigned to, unsigned x, unsigned y, unsigned z,
                                        unsigned w) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
// Loads two such matrices, transposed; lanes below 16 provide the addresses of rows.
__device__ inline void load_transposed(unsigned from, unsigned (&words)[2]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "r"(from)
                 : "memory");
}
__device__ inline void store_shared(unsigned to, float x, float y, float z, float w) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x), "f"(y), "f"(z),
                 "f"(w)
                 : "memory");
}
__device__ inline void store_shared(unsigned to, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}
__device__ inline void load_shared(unsigned from, float (&x)[2]) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(x[0]), "=f"(x[1])
                 : "r"(from)
                 : "memory");
}

__device__ inline void load_shared(unsigned from, unsigned (&x)[2]) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(x[0]), "=r"(x[1])
                 : "r"(from)
                 : "memory");
}
__device__ inline void load_shared(unsigned from, float (&x)[4]) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(from)
                 : "memory");
}

// Stores four floats at 16 aligned bytes of memory.
__device__ inline void store_floats(float* to, const float* four) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(four[0]), "f"(four[1]),
                 "f"(four[2]), "f"(four[3])
                 : "memory");
}
__device__ inline void store_float(float* to, float x) {
    asm volatile("st.global.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}
__device__ inline void store_float_if(bool condition, float* to, float x) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\n@p st.global.f32 [%0], %1;\n}" ::"l"(to),
                 "f"(x), "r"(static_cast<int>(condition))
                 : "memory");
}
// Stores two floats at 8 aligned bytes. The compiler would compare a plain store with all others
// near it.
__device__ inline void store_pair(float* to, float x, float y) {
    asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}
// Stores 16 aligned bytes.
__device__ inline void store_words(void* to, const int (&four)[4]) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(four[0]), "r"(four[1]),
                 "r"(four[2]), "r"(four[3])
                 : "memory");
}
__device__ inline void add_floats(float* to, const float* four) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(four[0]),
                 "f"(four[1]), "f"(four[2]), "f"(four[3])
                 : "memory");
}

// Adds without waiting for the result.
__device__ inline void add_float_if(bool condition, float* to, float x) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\n@p red.global.add.f32 [%0], %1;\n}" ::"l"(to),
        "f"(x), "r"(static_cast<int>(condition))
        : "memory");
}
__device__ inline unsigned largest_of_halves(unsigned x, unsigned y) {
    unsigned largest;
    asm("max.u16x2 %0, %1, %2;" : "=r"(largest) : "r"(x), "r"(y));
    return largest;
}
__device__ inline unsigned short load_shared_half(unsigned from) {
    unsigned short half;
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(half) : "r"(from) : "memory");
    return half;
}

// Makes the compiler read the kernel's parameters again after this. Otherwise it would read them
// once and keep them, and what follows from them, in registers from tile to tile, which spills
// others.
template <typename T> __device__ inline void read_again(const T& parameters) {
    asm volatile("" ::"l"(&parameters) : "memory");
}

// Makes the compiler keep x in a register as it is.
__device__ inline void keep(unsigned& x) { asm volatile("" : "+r"(x)); }
__device__ inline void keep(float*& x) { asm volatile("" : "+l"(x)); }

// Tells the compiler that x is the same in every thread of the warp.
__device__ inline int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

// Set the number of registers of each thread of the warpgroup from here on (PTX ISA, "setmaxnreg").
template <int kCount> __device__ inline void release_registers_to() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount> __device__ inline void claim_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Returns the same value in another register. While MMAs are under way, ptxas waits for all of them
// before it reads a register that any MMA ever wrote.
__device__ inline float in_another_register(float x) {
    float y;
    asm volatile("mov.b32 %0, %1;" : "=f"(y) : "f"(x) : "memory");
    return y;
}

template <int kCount> __device__ inline void clear(float (&sums)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
        sums[i] = 0;
}

// Makes uses of these registers stay on their side of this point.
template <int kCount> __device__ inline void pin(float (&x)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
        asm volatile("" : "+f"(x[i])::"memory");
}
template <int kCount> __device__ inline void pin(unsigned (&x)[kCount][4]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
        asm volatile("" : "+r"(x[i][0]), "+r"(x[i][1]), "+r"(x[i][2]), "+r"(x[i][3])::"memory");
}

// Makes sure that `value` is computed by this point: a store that never happens depends on it.
// ptxas moves waits for products above arithmetic that nothing ties down. 0xffabcdef is a NaN that
// no arithmetic makes.
__device__ inline void complete(float value, unsigned spare) {
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %0, 0xffabcdef;\n"
                 "@p st.shared.u32 [%1], %0;\n}" ::"r"(__float_as_uint(value)),
                 "r"(spare)
                 : "memory");
}

// Makes what is computed from x afterwards come after `value`: ptxas would fill the time until that
// is there with it, and wait for MMAs late.
__device__ inline void compute_after(float& x, float value) {
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %1, 0xffabcdef;\n"
                 "selp.f32 %0, 0f00000000, %0, p;\n}"
                 : "+f"(x)
                 : "r"(__float_as_uint(value)));
}

} // namespace sm90
