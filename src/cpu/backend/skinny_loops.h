// The loops of skinny_products.h, by vectors of one instruction set: included once for each, with
// FLEXC_VECTORS its namespace, which has Vector and what is done with it (avx2.h, avx512.h), and
// FLEXC_TARGET what its functions are compiled for.
#include <cstring>

#include "cpu/backend/skinny_products.h"

#define FLEXC_TARGET_INLINE FLEXC_TARGET __attribute__((always_inline)) static inline

namespace flexc::cpu::FLEXC_VECTORS {
namespace {

// Sums that are computed at once: enough to keep both multipliers busy, and one for each lane.
constexpr int kSums = static_cast<int>(kLanes);

// Prefetches rows: those of one head are often far apart, which the processor does not predict. A
// line at a time, between multiplications: a burst of them would wait for memory alone. Not far
// ahead: rows of one head may share a few sets of the first-level cache.
class RowsAhead {
  public:
    static constexpr std::int64_t kMost = 16, kMostBytes = 4096;

    RowsAhead(const MemoryRows& rows, std::int64_t dim, std::int64_t bytes)
        : data_(static_cast<const char*>(rows.data) + rows.first * bytes),
          stride_(rows.stride * bytes), count_(rows.count),
          next_(static_cast<const char*>(rows.data) + rows.next * bytes - count_ * stride_),
          near_(kMostBytes / (dim * bytes) < kMost ? kMostBytes / (dim * bytes) : kMost),
          are_adjacent_(stride_ == dim * bytes) {}

    // The row to prefetch while this one is multiplied: from row wraps_at() on, one of the rows
    // that are read next.
    FLEXC_TARGET __attribute__((always_inline)) const char* near(std::int64_t row) const {
        return at(row + near_);
    }
    FLEXC_TARGET __attribute__((always_inline)) std::int64_t wraps_at() const {
        return count_ - near_;
    }
    // A row further ahead, of which to prefetch a line, if rows are adjacent: processors of Intel
    // then read on.
    FLEXC_TARGET __attribute__((always_inline)) const char* far(std::int64_t row) const {
        return kRowsFarAhead > 0 && are_adjacent_ ? at(row + kRowsFarAhead) : nullptr;
    }

  private:
    FLEXC_TARGET __attribute__((always_inline)) const char* at(std::int64_t row) const {
        return (row < count_ ? data_ : next_) + row * stride_;
    }

    const char* data_;
    std::int64_t stride_, count_;
    const char* next_;  // of the next rows, what data_ is of these: their first one is row count_
    std::int64_t near_; // in rows
    bool are_adjacent_;
};

// Prefetches the lines that begin in kBytes bytes of a row from `first` on, a multiple of kBytes.
template <std::int64_t kBytes>
FLEXC_TARGET_INLINE void prefetch(const char* row, std::int64_t first) {
    constexpr std::int64_t kLine = 64;
    if (kBytes % kLine != 0 && first % kLine != 0) return;
    for (std::int64_t byte = 0; byte < kBytes; byte += kLine)
        _mm_prefetch(row + first + byte, _MM_HINT_T0);
}

// kKeys keys at `key`, each so many bytes after the one before it; the first one's number is `row`.
template <typename Load, int kRows, int kKeys>
FLEXC_TARGET_INLINE void scores_of(std::int64_t dim, const float* left, const char* key,
                                   std::int64_t bytes, [[maybe_unused]] float scale, float* scores,
                                   std::int64_t stride, const RowsAhead& ahead, std::int64_t row) {
    const char *const next = ahead.near(row), *const far = ahead.far(row);
    if (far != nullptr)
        for (int i = 0; i < kKeys; ++i)
            _mm_prefetch(far + i * bytes, _MM_HINT_T1);
    Vector sums[kSums];
    for (Vector& sum : sums)
        sum = zero();
    for (std::int64_t d = 0; d < dim; d += kLanes) {
        for (int i = 0; i < kKeys; ++i)
            prefetch<kLanes * Load::kBytes>(next + i * bytes, d * Load::kBytes);
        Vector of_keys[kKeys];
        for (int i = 0; i < kKeys; ++i)
            of_keys[i] = Load::at(key + i * bytes + d * Load::kBytes);
        for (int i = 0; i < kRows; ++i) {
            Vector of_row = load(left + i * dim + d);
            asm("" : "+v"(of_row)); // else each product would load it again
            for (int k = 0; k < kKeys; ++k)
                sums[i * kKeys + k] = fused(of_row, of_keys[k], sums[i * kKeys + k]);
        }
    }
    Vector all = sums_of(sums);
    if constexpr (Load::kBytes == 1) all = product(all, splat(scale));
    alignas(Vector) float of[kSums];
    store(of, all);
    for (int i = 0; i < kRows; ++i)
        std::memcpy(scores + i * stride, of + i * kKeys, kKeys * sizeof(float));
}

template <typename Load, int kRows>
FLEXC_TARGET void all_scores(std::int64_t dim, const float* left, const MemoryRows& keys,
                             float* scores, std::int64_t stride) {
    constexpr int kKeys = kSums / kRows;
    const std::int64_t bytes = keys.stride * Load::kBytes;
    const char* const data = static_cast<const char*>(keys.data) + keys.first * Load::kBytes;
    const RowsAhead ahead(keys, dim, Load::kBytes);
    std::int64_t j = 0;
    for (; j + kKeys <= keys.count; j += kKeys)
        scores_of<Load, kRows, kKeys>(dim, left, data + j * bytes, bytes, keys.scale, scores + j,
                                      stride, ahead, j);
    for (; j < keys.count; ++j)
        scores_of<Load, kRows, 1>(dim, left, data + j * bytes, bytes, keys.scale, scores + j,
                                  stride, ahead, j);
}

// Adds the weighted values of some keys to the columns from `first` on, kVectors vectors of each
// row at once: few enough keys to stay in the first-level cache. The remaining columns take fewer
// vectors at once. row: the number of the first key.
template <typename Load, int kRows, int kVectors>
FLEXC_TARGET_INLINE void add_values(std::int64_t first, std::int64_t dim, const float* weights,
                                    std::int64_t stride, const char* values, std::int64_t bytes,
                                    std::int64_t count, float scale, float* out,
                                    const RowsAhead& ahead, std::int64_t row) {
    const Vector scales = splat(scale);
    std::int64_t d = first;
    for (; d + kVectors * kLanes <= dim; d += kVectors * kLanes) {
        Vector sums[kRows * kVectors];
        for (int i = 0; i < kRows * kVectors; ++i)
            sums[i] = load(out + i / kVectors * dim + d + i % kVectors * kLanes);
        const char *from = values + d * Load::kBytes, *next = ahead.near(row);
        const char* far = d == 0 ? ahead.far(row) : nullptr;
        const float* weight = weights;
        for (std::int64_t j = 0; j < count; ++j, from += bytes, next += bytes, ++weight) {
            if (row + j == ahead.wraps_at()) next = ahead.near(row + j);
            prefetch<kVectors * kLanes * Load::kBytes>(next, d * Load::kBytes);
            if (far != nullptr) {
                _mm_prefetch(far, _MM_HINT_T1);
                far += bytes;
            }
            Vector of_values[kVectors];
            for (int i = 0; i < kVectors; ++i)
                of_values[i] = load_scaled<Load>(from + i * kLanes * Load::kBytes, scales);
            for (int i = 0; i < kRows; ++i) {
                const Vector of_row = splat(weight[i * stride]);
                for (int k = 0; k < kVectors; ++k)
                    sums[i * kVectors + k] = fused(of_row, of_values[k], sums[i * kVectors + k]);
            }
        }
        for (int i = 0; i < kRows * kVectors; ++i)
            store(out + i / kVectors * dim + d + i % kVectors * kLanes, sums[i]);
    }
    if constexpr (kVectors > 1)
        add_values<Load, kRows, kVectors / 2>(d, dim, weights, stride, values, bytes, count, scale,
                                              out, ahead, row);
}

template <typename Load, int kRows>
FLEXC_TARGET void add_all_values(std::int64_t dim, const float* weights, std::int64_t stride,
                                 const MemoryRows& values, float* out) {
    constexpr std::int64_t kAtOnce = 16;
    const RowsAhead ahead(values, dim, Load::kBytes);
    const std::int64_t bytes = values.stride * Load::kBytes;
    const char* const data = static_cast<const char*>(values.data) + values.first * Load::kBytes;
    for (std::int64_t j = 0; j < values.count; j += kAtOnce)
        add_values<Load, kRows, kSums / kRows>(
            0, dim, weights + j, stride, data + j * bytes, bytes,
            values.count - j < kAtOnce ? values.count - j : kAtOnce, values.scale, out, ahead, j);
}

// Calls call(Load, rows as a type, first row) for as many rows at once as have their sums in
// registers.
template <int kCount> struct RowCount {
    static constexpr int kRows = kCount;
};
template <typename Load, int kRows = 1, typename Call> void with_rows(int rows, const Call& call) {
    if constexpr (kRows < kSums)
        if (rows > kRows) return with_rows<Load, 2 * kRows>(rows, call);
    for (std::int64_t row = 0; row < rows; row += kRows)
        call(Load{}, RowCount<kRows>{}, row);
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

} // namespace flexc::cpu::FLEXC_VECTORS
