// Functions that device and host code share.
#pragma once

#ifdef __CUDACC__
#define FLEXC_SHARED __device__ inline
#else
#define FLEXC_SHARED inline
#endif

// Returns a word of memory that nothing writes while the kernel runs.
#ifdef __CUDACC__
__device__ inline int load_constant(const int* from) { return __ldg(from); }
#else
inline int load_constant(const int* from) { return *from; }
#endif
