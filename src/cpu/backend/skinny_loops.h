// The loops of skinny_products.h, by vectors of one instruction set: included once for each, with
// FLEXC_VECTORS its namespace, which has Vector and what is done with it (avx2.h and the like), and
// FLEXC_TARGET what its functions are compiled for.
#include <cstring>

#include "cpu/backend/skinny_products.h"

#define FLEXC_TARGET_INLINE FLEXC_TARGET __attribute__((always_inline)) static inline

namespace flexc::cpu::FLEXC_VECTORS {
namespace {

// Prefetches rows: those of one head are often far apart, which the processor does not predict. A
// line at a time, between multiplications: a burst of them would wait for memory alone. Not far
// ahead: rows of one head may share a few sets of the first-level cache.
class RowsAhead {
  public:
    RowsAhead(const MemoryRows& rows, std::int64_t dim, std::int64_t bytes)
        : data_(static_cast<const char*>(rows.data)), row_bytes_(dim * bytes),
          stride_(rows.stride * bytes), count_(rows.count), near_(rows.ahead),
          next_(static_cast<const char*>(rows.next) - (count_ > near_ ? count_ : near_) * stride_) {
    }

    std::int64_t row_bytes() const { return row_bytes_; }
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
        return kRowsFarAhead > 0 && stride_ == row_bytes_ ? at(row + kRowsFarAhead) : nullptr;
    }

  private:
    FLEXC_TARGET __attribute__((always_inline)) const char* at(std::int64_t row) const {
        return (row < count_ ? data_ : next_) + row * stride_;
    }

    const char* data_;
    std::int64_t row_bytes_, stride_, count_, near_;
    const char* next_; // of later rows, what data_ is of these
};

constexpr std::int64_t kLine = 64;

// Prefetches the lines that begin in kBytes bytes of a row from `first` on, a multiple of kBytes.
template <std::int64_t kBytes>
FLEXC_TARGET_INLINE void prefetch(const char* row, std::int64_t first) {
    if (kBytes % kLine != 0 && first % kLine != 0) return;
    for (std::int64_t byte = 0; byte < kBytes; byte += kLine)
        _mm_prefetch(row + first + byte, kPrefetchTo);
}

// Prefetches rows ahead line by line in the order of memory, whatever the order of products.
class LinesAhead {
  public:
    FLEXC_TARGET __attribute__((always_inline)) LinesAhead(const RowsAhead& rows, std::int64_t row)
        : rows_(rows), row_(row), line_(rows.near(row)), end_(line_ + rows.row_bytes()) {}

    // As many lines as kBytes bytes have, of which `first` have had theirs.
    template <std::int64_t kBytes>
    FLEXC_TARGET __attribute__((always_inline)) void prefetch(std::int64_t first) {
        if (kBytes % kLine != 0 && first % kLine != 0) return;
        for (std::int64_t byte = 0; byte < kBytes; byte += kLine) {
            _mm_prefetch(line_, kPrefetchTo);
            line_ += kLine;
            if (line_ < end_) continue;
            line_ = rows_.near(++row_);
            end_ = line_ + rows_.row_bytes();
        }
    }

  private:
    const RowsAhead& rows_;
    std::int64_t row_;
    const char *line_, *end_;
};

// Numbers that are multiplied as floats, a vector at a time.
template <typename Load> struct Floats : Load {
    using Number = float;
    static constexpr std::int64_t kNumbers = kLanes;
    FLEXC_TARGET_INLINE Vector of_row(const float* from) { return load(from); }
    FLEXC_TARGET_INLINE Vector fused(Vector x, Vector y, Vector z) {
        return FLEXC_VECTORS::fused(x, y, z);
    }
};

// kKeys keys at `key`, each so many bytes after the one before it; the first one's number is `row`.
template <typename Keys, int kRows, int kKeys>
FLEXC_TARGET_INLINE void scores_of(std::int64_t dim, const typename Keys::Number* left,
                                   const char* key, std::int64_t bytes,
                                   [[maybe_unused]] float scale, float* scores, std::int64_t stride,
                                   const RowsAhead& ahead, std::int64_t row) {
    const char *const next = ahead.near(row), *const far = ahead.far(row);
    if (far != nullptr)
        for (int i = 0; i < kKeys; ++i)
            _mm_prefetch(far + i * bytes, _MM_HINT_T1);
    Vector sums[kSums];
    for (Vector& sum : sums)
        sum = zero();
    for (std::int64_t d = 0; d < dim; d += Keys::kNumbers) {
        for (int i = 0; i < kKeys; ++i)
            prefetch<Keys::kNumbers * Keys::kBytes>(next + i * bytes, d * Keys::kBytes);
        Vector of_keys[kKeys];
        for (int i = 0; i < kKeys; ++i)
            of_keys[i] = Keys::at(key + i * bytes + d * Keys::kBytes);
        for (int i = 0; i < kRows; ++i) {
            Vector of_row = Keys::of_row(left + i * dim + d);
            asm("" : "+v"(of_row)); // else each product would load it again
            for (int k = 0; k < kKeys; ++k)
                sums[i * kKeys + k] = Keys::fused(of_row, of_keys[k], sums[i * kKeys + k]);
        }
    }
    alignas(Vector) float of[kSums];
    for (int i = 0; i < kSums; i += kLanes) {
        Vector all = sums_of(sums + i);
        if constexpr (Keys::kBytes == 1) all = product(all, splat(scale));
        store(of + i, all);
    }
    for (int i = 0; i < kRows; ++i)
        std::memcpy(scores + i * stride, of + i * kKeys, kKeys * sizeof(float));
}

template <typename Keys, int kRows>
FLEXC_TARGET void all_scores(std::int64_t dim, const typename Keys::Number* left,
                             const MemoryRows& keys, float* scores, std::int64_t stride) {
    constexpr int kKeys = kSums / kRows;
    const std::int64_t bytes = keys.stride * Keys::kBytes;
    const char* const data = static_cast<const char*>(keys.data);
    const RowsAhead ahead(keys, dim, Keys::kBytes);
    std::int64_t j = 0;
    for (; j + kKeys <= keys.count; j += kKeys)
        scores_of<Keys, kRows, kKeys>(dim, left, data + j * bytes, bytes, keys.scale, scores + j,
                                      stride, ahead, j);
    for (; j < keys.count; ++j)
        scores_of<Keys, kRows, 1>(dim, left, data + j * bytes, bytes, keys.scale, scores + j,
                                  stride, ahead, j);
}

// kVectors vectors of values, and sums of as many. Load may have an order of its own for two.
template <typename Load, int kVectors>
concept InPairs = kVectors % 2 == 0 && requires {
    Load::pair_at;
};
template <typename Load, int kVectors>
FLEXC_TARGET_INLINE void load_values(const char* from, Vector scales, Vector (&to)[kVectors]) {
    if constexpr (InPairs<Load, kVectors>)
        for (int i = 0; i < kVectors; i += 2)
            Load::pair_at(from + i * kLanes * Load::kBytes, to[i], to[i + 1]);
    else
        for (int i = 0; i < kVectors; ++i)
            to[i] = load_scaled<Load>(from + i * kLanes * Load::kBytes, scales);
}
template <typename Load, int kVectors>
FLEXC_TARGET_INLINE void load_sums(const float* from, Vector* to) {
    for (int i = 0; i < kVectors; ++i)
        if constexpr (InPairs<Load, kVectors>)
            to[i] = Load::load_sums(from + i / 2 * 2 * kLanes + i % 2 * kLanes / 2);
        else
            to[i] = load(from + i * kLanes);
}
template <typename Load, int kVectors>
FLEXC_TARGET_INLINE void store_sums(float* to, const Vector* from) {
    for (int i = 0; i < kVectors; ++i)
        if constexpr (InPairs<Load, kVectors>)
            Load::store_sums(to + i / 2 * 2 * kLanes + i % 2 * kLanes / 2, from[i]);
        else
            store(to + i * kLanes, from[i]);
}

// Adds the weighted values of some keys to the columns from `first` on, kVectors vectors of each
// row at once: few enough keys to stay in the first-level cache. The remaining columns take fewer
// vectors at once. row: the number of the first key.
template <typename Load, int kRows, int kVectors>
FLEXC_TARGET_INLINE void add_values(std::int64_t first, std::int64_t dim, const float* weights,
                                    std::int64_t stride, const char* values, std::int64_t bytes,
                                    std::int64_t count, float scale, float* out,
                                    const RowsAhead& ahead, LinesAhead& lines, std::int64_t row) {
    constexpr std::int64_t kBytes = kVectors * kLanes * Load::kBytes;
    const Vector scales = splat(scale);
    std::int64_t d = first;
    for (; d + kVectors * kLanes <= dim; d += kVectors * kLanes) {
        Vector sums[kRows * kVectors];
        for (int i = 0; i < kRows; ++i)
            load_sums<Load, kVectors>(out + i * dim + d, sums + i * kVectors);
        const char *from = values + d * Load::kBytes, *next = ahead.near(row);
        const char* far = d == 0 ? ahead.far(row) : nullptr;
        const float* weight = weights;
        for (std::int64_t j = 0; j < count; ++j, from += bytes, next += bytes, ++weight) {
            if constexpr (kPrefetchesInOrder) {
                lines.prefetch<kBytes>(j * kBytes);
            } else {
                if (row + j == ahead.wraps_at()) next = ahead.near(row + j);
                prefetch<kBytes>(next, d * Load::kBytes);
            }
            if (far != nullptr) {
                _mm_prefetch(far, _MM_HINT_T1);
                far += bytes;
            }
            Vector of_values[kVectors];
            load_values<Load>(from, scales, of_values);
            for (int i = 0; i < kRows; ++i) {
                const Vector of_row = splat(weight[i * stride]);
                for (int k = 0; k < kVectors; ++k)
                    sums[i * kVectors + k] = fused(of_row, of_values[k], sums[i * kVectors + k]);
            }
        }
        for (int i = 0; i < kRows; ++i)
            store_sums<Load, kVectors>(out + i * dim + d, sums + i * kVectors);
    }
    if constexpr (kVectors > 1)
        add_values<Load, kRows, kVectors / 2>(d, dim, weights, stride, values, bytes, count, scale,
                                              out, ahead, lines, row);
}

template <typename Load, int kRows>
FLEXC_TARGET void add_all_values(std::int64_t dim, const float* weights, std::int64_t stride,
                                 const MemoryRows& values, float* out) {
    const RowsAhead ahead(values, dim, Load::kBytes);
    const std::int64_t bytes = values.stride * Load::kBytes;
    const char* const data = static_cast<const char*>(values.data);
    for (std::int64_t j = 0; j < values.count; j += kValuesAtOnce) {
        LinesAhead lines(ahead, j);
        add_values<Load, kRows, kSums / kRows>(0, dim, weights + j, stride, data + j * bytes, bytes,
                                               values.count - j < kValuesAtOnce ? values.count - j
                                                                                : kValuesAtOnce,
                                               values.scale, out, ahead, lines, j);
    }
}

// Calls call(Load, rows as a type, first row) for as many rows at once as have their sums in
// registers.
template <int kCount> struct RowCount {
    static constexpr int kRows = kCount;
};
template <typename Load, int kRows = 1, typename Call> void with_rows(int rows, const Call& call) {
    if constexpr (kRows < kMostRows)
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
        all_scores<Floats<decltype(load)>, decltype(count)::kRows>(dim, left + row * dim, keys,
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
