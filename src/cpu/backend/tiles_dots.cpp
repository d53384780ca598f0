// Products of bf16 numbers by an instruction of AVX-512 that adds the products of pairs to floats.
#include <algorithm>
#include <cstring>

#include "cpu/backend/avx512.h"
#include "cpu/backend/part_products.h"
#include "cpu/backend/part_tiles.h"

#define FLEXC_DOTS                                                                                 \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define FLEXC_DOTS_INLINE FLEXC_DOTS __attribute__((always_inline)) static inline

namespace flexc::cpu::dots {

#if defined(__x86_64__)

namespace {

constexpr std::int64_t kLanes = avx512::kLanes;
constexpr std::int64_t kPairs = 2 * kLanes; // numbers in a vector
constexpr int kRows = 4, kMostVectors = 4;  // of the sums that are computed at once

// kRows rows of kVectors vectors of columns.
template <int kVectors>
FLEXC_DOTS_INLINE void multiply_block(const parts::Product& product, std::int64_t row,
                                      std::int64_t column) {
    float* const out = product.out + row * product.out_stride + column;
    __m512 sums[kRows][kVectors];
    for (int i = 0; i < kRows; ++i)
        for (int k = 0; k < kVectors; ++k)
            sums[i][k] = product.accumulate
                             ? _mm512_loadu_ps(out + i * product.out_stride + k * kLanes)
                             : _mm512_setzero_ps();
    const std::int64_t left_stride = product.left.stride, right_stride = product.right.stride;
    const std::uint16_t* left = product.left.data + row * left_stride;
    const std::uint16_t* right = product.right.data + column / kLanes * right_stride;
    for (std::int64_t inner = 0; inner < product.inner; inner += parts::kTileUnit) {
        const std::int64_t pairs =
            std::min<std::int64_t>(product.inner - inner, parts::kTileUnit) / 2;
        for (std::int64_t pair = 0; pair < pairs; ++pair) {
            __m512i of_right[kVectors];
            for (int k = 0; k < kVectors; ++k)
                of_right[k] = _mm512_loadu_si512(right + k * right_stride + pair * kPairs);
            for (int i = 0; i < kRows; ++i) {
                std::int32_t numbers = 0;
                std::memcpy(&numbers, left + i * left_stride + pair * 2, sizeof numbers);
                __m512i of_left = _mm512_set1_epi32(numbers);
                asm("" : "+v"(of_left)); // else each product would load it again
                for (int k = 0; k < kVectors; ++k)
                    sums[i][k] = _mm512_dpbf16_ps(sums[i][k], reinterpret_cast<__m512bh>(of_left),
                                                  reinterpret_cast<__m512bh>(of_right[k]));
            }
        }
        left += product.left.inner;
        right += product.right.inner;
    }
    for (int i = 0; i < kRows; ++i)
        for (int k = 0; k < kVectors; ++k)
            _mm512_storeu_ps(out + i * product.out_stride + k * kLanes, sums[i][k]);
}

// Columns from `column` on, as long as there are kVectors vectors of them; then fewer at once.
template <int kVectors>
FLEXC_DOTS void multiply_columns(const parts::Product& product, std::int64_t column) {
    constexpr std::int64_t kStep = kVectors * kLanes;
    for (; column + kStep <= product.columns; column += kStep)
        for (std::int64_t row = 0; row < product.rows; row += kRows)
            multiply_block<kVectors>(product, row, column);
    if constexpr (kVectors > 1) multiply_columns<kVectors / 2>(product, column);
}

} // namespace

// Intel's processors take as long for such a product as for four of half as many floats.
bool suits(int dim) {
    static const bool is_there = __builtin_cpu_is("amd") && avx512::suits(avx512::kLanes) &&
                                 __builtin_cpu_supports("avx512bf16");
    return is_there && dim % kLanes == 0;
}

void multiply(const parts::Product& product) { multiply_columns<kMostVectors>(product, 0); }

#else

bool suits(int) { return false; }
void multiply(const parts::Product&) {}

#endif

} // namespace flexc::cpu::dots
