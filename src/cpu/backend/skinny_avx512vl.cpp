#if defined(__x86_64__)

#include <algorithm>

#include "cpu/backend/avx512vl.h"

#define FLEXC_VECTORS avx512vl
#define FLEXC_TARGET FLEXC_AVX512VL
#include "cpu/backend/skinny_loops.h"

namespace flexc::cpu::avx512vl {
namespace {

// Products of pairs of keys, which are interleaved: of so many dims of each, and 16 lanes of sums.
constexpr std::int64_t kDims = 32, kSumLanes = 16;
constexpr int kBlockSums = 8; // in registers: rows, times blocks of kDims

// Places of the first and the last 16 of kDims dims of two keys, dim by dim.
struct Interleaved {
    __m512i first, last;
    FLEXC_TARGET Interleaved() {
        const __m512i dim = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __m512i of_second = _mm512_add_epi32(dim, _mm512_set1_epi32(kDims));
        first = _mm512_or_si512(dim, _mm512_slli_epi32(of_second, 16));
        last = _mm512_add_epi16(first, _mm512_set1_epi16(kDims / 2));
    }
};

// Prefetches the values of the next chunk while the rows of queries take their turns with this one:
// half of it in each of the first two turns, or all in the only one.
class ChunkAhead {
  public:
    FLEXC_TARGET __attribute__((always_inline)) ChunkAhead(LinesAhead& lines, int turn, int turns)
        : lines_(lines), halves_(turn > 1    ? 0
                                 : turns > 1 ? 1
                                             : 2) {}

    // Of two rows, kBytes bytes each.
    template <std::int64_t kBytes> FLEXC_TARGET __attribute__((always_inline)) void prefetch() {
        for (int half = 0; half < halves_; ++half)
            lines_.prefetch<kBytes>(0);
    }

  private:
    LinesAhead& lines_;
    int halves_;
};

// As add_values() of skinny_loops.h, for two keys at a time.
template <int kRows, int kBlocks>
FLEXC_TARGET_INLINE void add_pairs(std::int64_t first, std::int64_t dim,
                                   const std::uint16_t* weights, std::int64_t stride,
                                   const char* values, std::int64_t bytes, std::int64_t count,
                                   float* out, ChunkAhead& ahead) {
    constexpr int kVectors = 2 * kBlocks;
    constexpr std::int64_t kStep = kBlocks * kDims, kBytes = kStep * PairsOfBf16::kBytes;
    const Interleaved order;
    std::int64_t d = first;
    for (; d + kStep <= dim; d += kStep) {
        __m512 sums[kRows][kVectors];
        for (int i = 0; i < kRows; ++i)
            for (int k = 0; k < kVectors; ++k)
                sums[i][k] = _mm512_loadu_ps(out + i * dim + d + k * kSumLanes);
        // Adds the values of key j and, if `has_second`, of the one after it.
        const auto add = [&](std::int64_t j, bool has_second) FLEXC_TARGET
            __attribute__((always_inline)) {
            const char* const from = values + j * bytes + d * PairsOfBf16::kBytes;
            __m512i pairs[kVectors];
            for (int k = 0; k < kBlocks; ++k) {
                const __m512i one = _mm512_loadu_si512(from + k * kLine);
                const __m512i two = has_second ? _mm512_loadu_si512(from + bytes + k * kLine)
                                               : _mm512_setzero_si512();
                pairs[2 * k] = _mm512_permutex2var_epi16(one, order.first, two);
                pairs[2 * k + 1] = _mm512_permutex2var_epi16(one, order.last, two);
            }
            for (int i = 0; i < kRows; ++i) {
                std::int32_t of_keys = 0;
                std::memcpy(&of_keys, weights + i * stride + j, has_second ? 4 : 2);
                __m512i of_row = _mm512_set1_epi32(of_keys);
                asm("" : "+v"(of_row)); // else each product would load it again
                for (int k = 0; k < kVectors; ++k)
                    sums[i][k] = _mm512_dpbf16_ps(sums[i][k], reinterpret_cast<__m512bh>(of_row),
                                                  reinterpret_cast<__m512bh>(pairs[k]));
            }
        };
        std::int64_t j = 0;
        for (; j + 2 <= count; j += 2) {
            ahead.prefetch<kBytes>();
            add(j, true);
        }
        if (j < count) add(j, false);
        for (int i = 0; i < kRows; ++i)
            for (int k = 0; k < kVectors; ++k)
                _mm512_storeu_ps(out + i * dim + d + k * kSumLanes, sums[i][k]);
    }
    if constexpr (kBlocks > 1)
        add_pairs<kRows, kBlocks / 2>(d, dim, weights, stride, values, bytes, count, out, ahead);
}

template <int kRows>
FLEXC_TARGET void add_all_pairs(int rows, int dim, const std::uint16_t* weights,
                                std::int64_t stride, const MemoryRows& values, float* out) {
    const RowsAhead ahead(values, dim, PairsOfBf16::kBytes);
    const std::int64_t bytes = values.stride * PairsOfBf16::kBytes;
    const char* const data = static_cast<const char*>(values.data);
    for (std::int64_t j = 0; j < values.count; j += kValuesAtOnce) {
        LinesAhead lines(ahead, j);
        const std::int64_t count = std::min(values.count - j, kValuesAtOnce);
        for (int row = 0; row < rows; row += kRows) {
            ChunkAhead chunk(lines, row / kRows, rows / kRows);
            add_pairs<kRows, kBlockSums / kRows>(0, dim, weights + row * stride + j, stride,
                                                 data + j * bytes, bytes, count,
                                                 out + std::int64_t{row} * dim, chunk);
        }
    }
}

} // namespace

FLEXC_TARGET void round_weights(int rows, std::int64_t keys, const float* weights,
                                std::int64_t stride, std::uint16_t* rounded) {
    for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t key = 0; key < keys; key += kSumLanes)
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(rounded + row * stride + key),
                                reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(
                                    _mm512_loadu_ps(weights + row * stride + key))));
}

// Four rows at once interleave values half as often as two, which read up to 128 dims of a key
// before the next one: where rows are adjacent, the processor then reads ahead too.
void add_bf16_weighted_values(int rows, int dim, const std::uint16_t* weights, std::int64_t stride,
                              const MemoryRows& values, float* out) {
    const bool takes_turns = rows == 4 && values.stride == dim;
    (rows < 4 || takes_turns ? add_all_pairs<2> : add_all_pairs<4>)(rows, dim, weights, stride,
                                                                    values, out);
}

void multiply_bf16_by_keys(int rows, int dim, const std::uint16_t* left, const MemoryRows& keys,
                           float* scores, std::int64_t stride) {
    with_rows<PairsOfBf16>(rows, [&](auto load, auto count, std::int64_t row) {
        all_scores<decltype(load), decltype(count)::kRows>(dim, left + row * dim, keys,
                                                           scores + row * stride, stride);
    });
}

} // namespace flexc::cpu::avx512vl

#endif
