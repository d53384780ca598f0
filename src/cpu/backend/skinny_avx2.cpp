#if defined(__x86_64__)

#include "cpu/backend/avx2.h"

#define FLEXC_VECTORS avx2
#define FLEXC_TARGET FLEXC_AVX2
#include "cpu/backend/skinny_loops.h"

#endif
