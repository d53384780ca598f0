// Functions that device and host code share.
#pragma once

#ifdef __CUDACC__
#define FLEXC_SHARED __device__ inline
#else
#define FLEXC_SHARED inline
#endif
