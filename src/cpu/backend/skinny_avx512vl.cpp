#if defined(__x86_64__)

#include "cpu/backend/avx512vl.h"

#define FLEXC_VECTORS avx512vl
#define FLEXC_TARGET FLEXC_AVX512VL
#include "cpu/backend/skinny_loops.h"

namespace flexc::cpu::avx512vl {

void multiply_bf16_by_keys(int rows, int dim, const std::uint16_t* left, const MemoryRows& keys,
                           float* scores, std::int64_t stride) {
    with_rows<PairsOfBf16>(rows, [&](auto load, auto count, std::int64_t row) {
        all_scores<decltype(load), decltype(count)::kRows>(dim, left + row * dim, keys,
                                                           scores + row * stride, stride);
    });
}

} // namespace flexc::cpu::avx512vl

#endif
