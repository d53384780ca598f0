#include "cpu/backend/rescale.h"

#include <algorithm>

#include "cpu/backend/avx2.h"
#include "cpu/backend/flush_denormals.h"

namespace flexc::cpu {

namespace {

// Loops, compiled for the instruction set of the function that they are inlined into.
struct Rescale {
    __attribute__((always_inline)) static inline void
    run(std::int64_t rows, int dim, const float* factors, const float*, float* sums) {
        for (std::int64_t row = 0; row < rows; ++row, sums += dim) {
            const float factor = factors[row];
            if (factor == 1) continue;
            for (int d = 0; d < dim; ++d)
                sums[d] *= factor;
        }
    }
};
struct Divide {
    __attribute__((always_inline)) static inline void
    run(std::int64_t rows, int dim, const float* factors, const float* weights, float* sums) {
        for (std::int64_t row = 0; row < rows; ++row, sums += dim) {
            const float factor = factors[row], weight = weights[row];
            for (int d = 0; d < dim; ++d)
                sums[d] = sums[d] * factor / weight;
        }
    }
};

#if defined(__x86_64__)
template <typename Loop>
FLEXC_AVX2 void run_by_avx2(std::int64_t rows, int dim, const float* factors, const float* weights,
                            float* sums) {
    Loop::run(rows, dim, factors, weights, sums);
}
#endif

template <typename Loop>
void run(std::int64_t rows, int dim, const float* factors, const float* weights, float* sums) {
#if defined(__x86_64__)
    if (has_avx2()) return run_by_avx2<Loop>(rows, dim, factors, weights, sums);
#endif
    Loop::run(rows, dim, factors, weights, sums);
}

} // namespace

void rescale(std::int64_t rows, int dim, const float* factors, float* sums) {
    if (std::all_of(factors, factors + rows, [](float factor) { return factor == 1; })) return;
    const FlushDenormals flush;
    run<Rescale>(rows, dim, factors, nullptr, sums);
}

void divide(std::int64_t rows, int dim, const float* factors, const float* weights, float* sums) {
    run<Divide>(rows, dim, factors, weights, sums);
}

} // namespace flexc::cpu
