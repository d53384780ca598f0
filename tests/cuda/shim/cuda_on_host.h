// The part of CUDA C++ that generated code uses, for a host compiler.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__
#define __noinline__
#define __align__(bytes) __attribute__((aligned(bytes)))

// Texts of tests name what features of Hopper's forward consist of, whatever the program has.
#define FLEXC_COPIES_KEYS
#define FLEXC_HAS_DENSE_BIAS
#define FLEXC_HAS_KEY_KINDS
#define FLEXC_HAS_OPERANDS
#define FLEXC_HAS_SHIFTED_READS
#define FLEXC_HAS_TABLES
#define FLEXC_IS_AFFINE
#define FLEXC_TABULATES

using std::max;
using std::min;

struct ThreadIndex {
    unsigned x = 0, y = 0, z = 0;
};
static thread_local ThreadIndex threadIdx, blockIdx, gridDim;

inline float __uint_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
inline unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, sizeof x);
    return bits;
}
inline float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }
inline int __float_as_int(float x) { return static_cast<int>(__float_as_uint(x)); }
inline unsigned __umulhi(unsigned x, unsigned y) {
    return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}
// Byte i of the result is the one of x and y that four bits of the selector name.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned long long both = static_cast<unsigned long long>(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i)
        result |= static_cast<unsigned>(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
    return static_cast<unsigned>(both << (shift & 31) >> 32);
}
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }

// The device's conversions saturate.
template <typename Int> Int saturated(float x) {
    constexpr float kEnd = sizeof(Int) == 4 ? 0x1p31f : 0x1p63f;
    if (x >= kEnd) return std::numeric_limits<Int>::max();
    if (x < -kEnd) return std::numeric_limits<Int>::min();
    return static_cast<Int>(x);
}
inline long long __float2ll_rz(float x) { return saturated<long long>(x); }
inline int __float2int_rz(float x) { return saturated<int>(x); }

#define __builtin_assume(condition)
template <typename T> T __ldg(const T* p) { return *p; }
inline float atomicAdd(float* p, float x) {
    float before, after;
    __atomic_load(p, &before, __ATOMIC_SEQ_CST);
    do
        after = before + x;
    while (
        !__atomic_compare_exchange(p, &before, &after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return before;
}
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
inline int atomicAdd(int* p, int x) { return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST); }
inline void atomicAdd(float2* p, float2 x) {
    atomicAdd(&p->x, x.x);
    atomicAdd(&p->y, x.y);
}
inline void atomicAdd(float4* p, float4 x) {
    atomicAdd(&p->x, x.x);
    atomicAdd(&p->y, x.y);
    atomicAdd(&p->z, x.z);
    atomicAdd(&p->w, x.w);
}
inline float __fmul_rn(float x, float y) { return x * y; }
// Toward zero, of what a double has.
inline float toward_zero(double x) {
    const float rounded = static_cast<float>(x);
    return std::isfinite(x) && std::fabs(static_cast<double>(rounded)) > std::fabs(x)
               ? std::nextafter(rounded, 0.0F)
               : rounded;
}
inline float __fmul_rz(float x, float y) { return toward_zero(static_cast<double>(x) * y); }
inline unsigned __sad(int x, int y, unsigned z) {
    return z + (x < y ? static_cast<unsigned>(y) - static_cast<unsigned>(x)
                      : static_cast<unsigned>(x) - static_cast<unsigned>(y));
}
inline float __fadd_rz(float x, float y) { return toward_zero(static_cast<double>(x) + y); }
inline float __fmaf_rz(float x, float y, float z) {
    return toward_zero(static_cast<double>(x) * y + z);
}
inline void atomicAdd(unsigned long long* p, unsigned long long x) {
    __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST);
}
inline void atomicOr(unsigned* p, unsigned x) { __atomic_fetch_or(p, x, __ATOMIC_SEQ_CST); }
inline void atomicAnd(unsigned* p, unsigned x) { __atomic_fetch_and(p, x, __ATOMIC_SEQ_CST); }
inline long long __double_as_longlong(double x) {
    long long bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline double __longlong_as_double(long long bits) {
    double x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// A warp whose lanes are threads of the host, which meet where they exchange values. Without one, a
// thread plays the warp alone: the others hold zeros.
struct HostWarp {
    pthread_barrier_t barrier;
    unsigned long long values[32];

    HostWarp() { pthread_barrier_init(&barrier, nullptr, 32); }
    ~HostWarp() { pthread_barrier_destroy(&barrier); }
    template <typename Take> auto exchange(unsigned long long value, Take take) {
        values[threadIdx.x % 32] = value;
        pthread_barrier_wait(&barrier);
        const auto result = take(values);
        pthread_barrier_wait(&barrier);
        return result;
    }
};
static thread_local HostWarp* warp_of_thread = nullptr;

// Every lane of a warp: work(lane).
template <typename Work> void run_warp(Work work) {
    HostWarp warp;
    std::vector<std::thread> lanes;
    for (int lane = 0; lane < 32; ++lane)
        lanes.emplace_back([&warp, &work, lane] {
            warp_of_thread = &warp;
            threadIdx.x = static_cast<unsigned>(lane);
            work(lane);
        });
    for (std::thread& lane : lanes)
        lane.join();
}

// A block likewise, with its warps: work() in each thread.
static thread_local pthread_barrier_t* barrier_of_block = nullptr;
inline void __syncthreads() {
    if (barrier_of_block != nullptr) pthread_barrier_wait(barrier_of_block);
}
template <typename Work> void run_block(int count, Work work) {
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, nullptr, static_cast<unsigned>(count));
    std::vector<HostWarp> warps(static_cast<std::size_t>(count / 32));
    std::vector<std::thread> threads;
    for (int thread = 0; thread < count; ++thread)
        threads.emplace_back([&barrier, &warps, &work, thread] {
            barrier_of_block = &barrier;
            if (thread / 32 < static_cast<int>(warps.size()))
                warp_of_thread = &warps[static_cast<std::size_t>(thread / 32)];
            threadIdx.x = static_cast<unsigned>(thread);
            work();
        });
    for (std::thread& thread : threads)
        thread.join();
    pthread_barrier_destroy(&barrier);
}
inline int atomicMin(int* p, int x) {
    int before = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    while (x < before &&
           !__atomic_compare_exchange_n(p, &before, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return before;
}

inline int atomicMax(int* p, int x) {
    int before = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    while (x > before &&
           !__atomic_compare_exchange_n(p, &before, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return before;
}

inline double __shfl_xor_sync(unsigned, double x, int lanes) {
    if (warp_of_thread == nullptr) return 0;
    unsigned long long bits;
    std::memcpy(&bits, &x, sizeof bits);
    return warp_of_thread->exchange(bits, [&](const unsigned long long* values) {
        double other;
        std::memcpy(&other, &values[threadIdx.x % 32 ^ lanes], sizeof other);
        return other;
    });
}
inline float __shfl_xor_sync(unsigned mask, float x, int lanes) {
    return static_cast<float>(__shfl_xor_sync(mask, static_cast<double>(x), lanes));
}
inline long long __shfl_xor_sync(unsigned mask, long long x, int lanes) {
    return __double_as_longlong(__shfl_xor_sync(mask, __longlong_as_double(x), lanes));
}
inline int __shfl_up_sync(unsigned, int x, int lanes) {
    if (warp_of_thread == nullptr) return 0;
    return warp_of_thread->exchange(static_cast<unsigned>(x),
                                    [&](const unsigned long long* values) {
                                        const int lane = static_cast<int>(threadIdx.x % 32) - lanes;
                                        return lane >= 0 ? static_cast<int>(values[lane]) : x;
                                    });
}
// Of a thread that plays the block alone.
inline int __syncthreads_or(int x) { return x; }
inline unsigned __match_all_sync(unsigned, unsigned long long x, int* same) {
    *same = warp_of_thread == nullptr
                ? 0
                : warp_of_thread->exchange(x, [x](const unsigned long long* values) {
                      return std::all_of(values, values + 32,
                                         [x](unsigned long long value) { return value == x; });
                  });
    return *same != 0 ? ~0u : 0;
}
template <typename T> T __shfl_sync(unsigned, T x, int lane) {
    if (warp_of_thread == nullptr) return 0;
    return warp_of_thread->exchange(
        x, [&](const unsigned long long* values) { return static_cast<T>(values[lane]); });
}
inline float __shfl_down_sync(unsigned, float x, int lanes) {
    if (warp_of_thread == nullptr) return 0;
    return warp_of_thread->exchange(__float_as_uint(x), [&](const unsigned long long* values) {
        const int lane = static_cast<int>(threadIdx.x % 32) + lanes;
        return lane < 32 ? __uint_as_float(static_cast<unsigned>(values[lane])) : x;
    });
}
inline unsigned __ballot_sync(unsigned, bool x) {
    if (warp_of_thread == nullptr) return 0;
    return warp_of_thread->exchange(x, [](const unsigned long long* values) {
        unsigned all = 0;
        for (int lane = 0; lane < 32; ++lane)
            all |= static_cast<unsigned>(values[lane] != 0) << lane;
        return all;
    });
}
inline bool __any_sync(unsigned mask, bool x) {
    return warp_of_thread == nullptr ? x : __ballot_sync(mask, x) != 0;
}
inline bool __all_sync(unsigned mask, bool x) {
    return warp_of_thread == nullptr ? x : __ballot_sync(mask, x) == ~0u;
}
template <typename Int> Int __reduce_min_sync(unsigned, Int x) {
    if (warp_of_thread == nullptr) return x;
    return warp_of_thread->exchange(static_cast<unsigned long long>(x),
                                    [](const unsigned long long* values) {
                                        Int least = static_cast<Int>(values[0]);
                                        for (int lane = 1; lane < 32; ++lane)
                                            least = min(least, static_cast<Int>(values[lane]));
                                        return least;
                                    });
}
inline int __reduce_add_sync(unsigned, int x) {
    if (warp_of_thread == nullptr) return x;
    return warp_of_thread->exchange(static_cast<unsigned>(x), [](const unsigned long long* values) {
        unsigned sum = 0;
        for (int lane = 0; lane < 32; ++lane)
            sum += static_cast<unsigned>(values[lane]);
        return static_cast<int>(sum);
    });
}
template <typename Int> Int __reduce_max_sync(unsigned mask, Int x) {
    return static_cast<Int>(~__reduce_min_sync(mask, static_cast<Int>(~x)));
}
inline void __syncwarp() {
    if (warp_of_thread != nullptr) (void)__any_sync(0xffffffffu, false);
}
inline unsigned __dp4a(unsigned x, unsigned y, unsigned sum) {
    for (int i = 0; i < 32; i += 8)
        sum += (x >> i & 0xff) * (y >> i & 0xff);
    return sum;
}
inline unsigned __dp2a_lo(unsigned x, unsigned y, unsigned sum) {
    return sum + (x & 0xffff) * (y & 0xff) + (x >> 16) * (y >> 8 & 0xff);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __ffs(unsigned x) { return __builtin_ffs(static_cast<int>(x)); }
