// The loops of skinny_products.h, by vectors of one instruction set: included once for each, with
// FLEXC_VECTORS its namespace, which has Vector and what is done with it (avx2.h, avx512.h), and
// FLEXC_TARGET what its functions are compiled for.
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
          next_(static_cast<const char*>(rows.data) + rows.next * bytes),
          stride_(rows.stride * bytes), count_(rows.count), bytes_(dim * bytes),
          ahead_(kMostBytes / bytes_ < kMost ? kMostBytes / bytes_ : kMost) {}

    // Prefetches the lines that begin in these bytes of a row after this one. With the first of
    // them, further ahead, it prefetches a line of rows that are adjacent, which makes processors
    // of Intel read on.
    FLEXC_TARGET __attribute__((always_inline)) void prefetch(std::int64_t row, std::int64_t first,
                                                              std::int64_t bytes) const {
        constexpr std::int64_t kLine = 64;
        for (std::int64_t byte = first; byte < first + bytes; byte += kLine)
            if (byte % kLine == 0) _mm_prefetch(at(row + ahead_) + byte, _MM_HINT_T0);
        if constexpr (kRowsFarAhead > 0)
            if (first == 0 && stride_ == bytes_) _mm_prefetch(at(row + kRowsFarAhead), _MM_HINT_T1);
    }

  private:
    FLEXC_TARGET __attribute__((always_inline)) const char* at(std::int64_t row) const {
        return row < count_ ? data_ + row * stride_ : next_ + (row - count_) * stride_;
    }

    const char *data_, *next_;
    std::int64_t stride_, count_;
    std::int64_t bytes_, ahead_; // ahead_: in rows
};

// kKeys keys at `key`, each so many bytes after the one before it; the first one's number is `row`.
template <typename Load, int kRows, int kKeys>
FLEXC_TARGET_INLINE void scores_of(std::int64_t dim, const float* left, const char* key,
                                   std::int64_t bytes, [[maybe_unused]] float scale, float* scores,
                                   std::int64_t stride, const RowsAhead& ahead, std::int64_t row) {
    Vector sums[kSums];
    for (Vector& sum : sums)
        sum = zero();
    for (std::int64_t d = 0; d < dim; d += kLanes) {
        Vector of_keys[kKeys];
        for (int i = 0; i < kKeys; ++i)
            ahead.prefetch(row + i, d * Load::kBytes, kLanes * Load::kBytes);
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
        for (int k = 0; k < kKeys; ++k)
            scores[i * stride + k] = of[i * kKeys + k];
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
        for (std::int64_t j = 0; j < count; ++j) {
            ahead.prefetch(row + j, d * Load::kBytes, kVectors * kLanes * Load::kBytes);
            Vector of_values[kVectors];
            for (int i = 0; i < kVectors; ++i)
                of_values[i] =
                    load_scaled<Load>(values + j * bytes + (d + i * kLanes) * Load::kBytes, scales);
            for (int i = 0; i < kRows * kVectors; ++i)
                sums[i] = fused(splat(weights[i / kVectors * stride + j]), of_values[i % kVectors],
                                sums[i]);
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
