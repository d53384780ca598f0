#if defined(__x86_64__)

#include "cpu/backend/avx512.h"

#define FLEXC_VECTORS avx512
#define FLEXC_TARGET FLEXC_AVX512
#include "cpu/backend/skinny_loops.h"

#endif
