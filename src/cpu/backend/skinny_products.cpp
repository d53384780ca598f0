#include "cpu/backend/skinny_products.h"

#include "cpu/backend/avx2.h"

namespace flexc::cpu {

#if defined(__x86_64__)

namespace {

using namespace avx2;

// Sums at once: as many as keep both multipliers busy.
constexpr int kSums = 8;

// Rows of one head are often apart, where the processor does not foresee them.
class RowsAhead {
  public:
    static constexpr std::int64_t kCount = 16;

    RowsAhead(const MemoryRows& rows, std::int64_t dim, std::int64_t bytes)
        : data_(static_cast<const char*>(rows.data) + rows.first * bytes),
          next_(static_cast<const char*>(rows.data) + rows.next * bytes),
          stride_(rows.stride * bytes), count_(rows.count), bytes_(dim * bytes) {}

    // The row so many after this one.
    FLEXC_AVX2 __attribute__((always_inline)) void prefetch(std::int64_t row) const {
        constexpr int kLine = 64;
        row += kCount;
        const char* const from =
            row < count_ ? data_ + row * stride_ : next_ + (row - count_) * stride_;
        for (std::int64_t at = 0; at < bytes_; at += kLine)
            _mm_prefetch(from + at, _MM_HINT_T0);
    }

  private:
    const char *data_, *next_;
    std::int64_t stride_, count_;
    std::int64_t bytes_;
};

// The sum of each of eight vectors.
FLEXC_AVX2_INLINE __m256 sums_of(const __m256 (&x)[kSums]) {
    const __m256 low = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    const __m256 high = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20),
                         _mm256_permute2f128_ps(low, high, 0x31));
}

// kKeys keys at `key`, each so many bytes after the one before it.
template <typename Load, int kRows, int kKeys>
FLEXC_AVX2_INLINE void scores_of(std::int64_t dim, const float* left, const char* key,
                                 std::int64_t bytes, [[maybe_unused]] float scale, float* scores,
                                 std::int64_t stride) {
    __m256 sums[kSums];
    for (__m256& sum : sums)
        sum = _mm256_setzero_ps();
    for (std::int64_t d = 0; d < dim; d += kLanes) {
        __m256 of_keys[kKeys];
        for (int i = 0; i < kKeys; ++i)
            of_keys[i] = Load::at(key + i * bytes + d * Load::kBytes);
        for (int row = 0; row < kRows; ++row) {
            __m256 of_row = _mm256_loadu_ps(left + row * dim + d);
            asm("" : "+x"(of_row)); // else each product would load it again
            for (int i = 0; i < kKeys; ++i)
                sums[row * kKeys + i] = _mm256_fmadd_ps(of_row, of_keys[i], sums[row * kKeys + i]);
        }
    }
    __m256 all = sums_of(sums);
    if constexpr (Load::kBytes == 1) all = _mm256_mul_ps(all, _mm256_set1_ps(scale));
    alignas(32) float of[kSums];
    _mm256_store_ps(of, all);
    for (int row = 0; row < kRows; ++row)
        for (int i = 0; i < kKeys; ++i)
            scores[row * stride + i] = of[row * kKeys + i];
}

template <typename Load, int kRows>
FLEXC_AVX2 void all_scores(std::int64_t dim, const float* left, const MemoryRows& keys,
                           float* scores, std::int64_t stride) {
    constexpr int kKeys = kSums / kRows;
    const std::int64_t bytes = keys.stride * Load::kBytes;
    const char* const data = static_cast<const char*>(keys.data) + keys.first * Load::kBytes;
    const RowsAhead ahead(keys, dim, Load::kBytes);
    std::int64_t j = 0;
    for (; j + kKeys <= keys.count; j += kKeys) {
        for (int i = 0; i < kKeys; ++i)
            ahead.prefetch(j + i);
        scores_of<Load, kRows, kKeys>(dim, left, data + j * bytes, bytes, keys.scale, scores + j,
                                      stride);
    }
    for (; j < keys.count; ++j)
        scores_of<Load, kRows, 1>(dim, left, data + j * bytes, bytes, keys.scale, scores + j,
                                  stride);
}

// Some keys' part of all columns: few enough for them to stay in the first-level cache.
template <typename Load, int kRows>
FLEXC_AVX2_INLINE void add_values(std::int64_t dim, const float* weights, std::int64_t stride,
                                  const char* values, std::int64_t bytes, std::int64_t count,
                                  float scale, float* out) {
    constexpr int kVectors = kSums / kRows;
    const __m256 scales = _mm256_set1_ps(scale);
    std::int64_t d = 0;
    for (; d + kVectors * kLanes <= dim; d += kVectors * kLanes) {
        __m256 sums[kSums];
        for (int i = 0; i < kSums; ++i)
            sums[i] = _mm256_loadu_ps(out + i / kVectors * dim + d + i % kVectors * kLanes);
        for (std::int64_t j = 0; j < count; ++j) {
            __m256 of_values[kVectors];
            for (int i = 0; i < kVectors; ++i)
                of_values[i] =
                    load_scaled<Load>(values + j * bytes + (d + i * kLanes) * Load::kBytes, scales);
            for (int i = 0; i < kSums; ++i)
                sums[i] = _mm256_fmadd_ps(_mm256_broadcast_ss(weights + i / kVectors * stride + j),
                                          of_values[i % kVectors], sums[i]);
        }
        for (int i = 0; i < kSums; ++i)
            _mm256_storeu_ps(out + i / kVectors * dim + d + i % kVectors * kLanes, sums[i]);
    }
    for (; d < dim; d += kLanes)
        for (int row = 0; row < kRows; ++row) {
            __m256 sum = _mm256_loadu_ps(out + row * dim + d);
            for (std::int64_t j = 0; j < count; ++j)
                sum = _mm256_fmadd_ps(
                    _mm256_broadcast_ss(weights + row * stride + j),
                    load_scaled<Load>(values + j * bytes + d * Load::kBytes, scales), sum);
            _mm256_storeu_ps(out + row * dim + d, sum);
        }
}

template <typename Load, int kRows>
FLEXC_AVX2 void add_all_values(std::int64_t dim, const float* weights, std::int64_t stride,
                               const MemoryRows& values, float* out) {
    constexpr std::int64_t kAtOnce = RowsAhead::kCount;
    const RowsAhead ahead(values, dim, Load::kBytes);
    const std::int64_t bytes = values.stride * Load::kBytes;
    const char* const data = static_cast<const char*>(values.data) + values.first * Load::kBytes;
    for (std::int64_t j = 0; j < values.count; j += kAtOnce) {
        for (std::int64_t i = j; i < j + kAtOnce; ++i)
            ahead.prefetch(i);
        add_values<Load, kRows>(dim, weights + j, stride, data + j * bytes, bytes,
                                values.count - j < kAtOnce ? values.count - j : kAtOnce,
                                values.scale, out);
    }
}

// call(Load, rows as a type, the first one) for as many rows at once as have their sums in
// registers.
template <int kCount> struct RowCount {
    static constexpr int kRows = kCount;
};
template <typename Load, typename Call> void with_rows(int rows, const Call& call) {
    switch (rows) {
    case 1: return call(Load{}, RowCount<1>{}, 0);
    case 2: return call(Load{}, RowCount<2>{}, 0);
    case 4: return call(Load{}, RowCount<4>{}, 0);
    default:
        for (std::int64_t row = 0; row < rows; row += kSums)
            call(Load{}, RowCount<kSums>{}, row);
    }
}
template <typename Call> void with_type(DType dtype, int rows, const Call& call) {
    switch (dtype) {
    case DType::f16: return with_rows<LoadF16>(rows, call);
    case DType::bf16: return with_rows<LoadBf16>(rows, call);
    case DType::e4m3: return with_rows<LoadE4m3>(rows, call);
    case DType::e5m2: return with_rows<LoadE5m2>(rows, call);
    case DType::i8: return with_rows<LoadI8>(rows, call);
    default: return with_rows<LoadF32>(rows, call);
    }
}

} // namespace

bool has_skinny_products(int dim) { return dim % kLanes == 0 && has_avx2(); }

void multiply_by_keys(DType dtype, int rows, int dim, const float* left, const MemoryRows& keys,
                      float* scores, std::int64_t stride) {
    with_type(dtype, rows, [&](auto load, auto count, std::int64_t row) {
        all_scores<decltype(load), decltype(count)::kRows>(dim, left + row * dim, keys,
                                                           scores + row * stride, stride);
    });
}

void add_weighted_values(DType dtype, int rows, int dim, const float* weights, std::int64_t stride,
                         const MemoryRows& values, float* out) {
    with_type(dtype, rows, [&](auto load, auto count, std::int64_t row) {
        add_all_values<decltype(load), decltype(count)::kRows>(dim, weights + row * stride, stride,
                                                               values, out + row * dim);
    });
}

#else

bool has_skinny_products(int) { return false; }
void multiply_by_keys(DType, int, int, const float*, const MemoryRows&, float*, std::int64_t) {}
void add_weighted_values(DType, int, int, const float*, std::int64_t, const MemoryRows&, float*) {}

#endif

} // namespace flexc::cpu
