#include "cpu/backend/skinny_products.h"

#include <algorithm>

#include "cpu/backend/avx2.h"
#include "cpu/backend/avx512.h"
#include "cpu/backend/avx512vl.h"

namespace flexc::cpu {

#if defined(__x86_64__)

namespace {

// The vectors that products of rows of this length have.
enum class Vectors : std::uint8_t { avx2, avx512, avx512vl };
Vectors vectors_for(int dim) {
    if (avx512vl::suits(dim)) return Vectors::avx512vl;
    return avx512::suits(dim) ? Vectors::avx512 : Vectors::avx2;
}

} // namespace

bool has_skinny_products(int dim) { return dim % avx2::kLanes == 0 && has_avx2(); }

ReadingOrder reading_order(int dim, std::int64_t row_bytes) {
    const auto order = [&](std::int64_t rows, std::int64_t bytes, std::int64_t keys_at_once) {
        return ReadingOrder{std::max<std::int64_t>(std::min(rows, bytes / row_bytes), 1),
                            keys_at_once};
    };
    switch (vectors_for(dim)) {
    case Vectors::avx512vl:
        return order(avx512vl::kRowsAhead, avx512vl::kBytesAhead, avx512vl::kKeysAtOnce);
    case Vectors::avx512: return order(avx512::kRowsAhead, avx512::kBytesAhead, 0);
    default: return order(avx2::kRowsAhead, avx2::kBytesAhead, 0);
    }
}

void multiply_by_keys(DType dtype, int rows, int dim, const float* left, const MemoryRows& keys,
                      float* scores, std::int64_t stride) {
    const Vectors vectors = vectors_for(dim);
    const auto multiply = vectors == Vectors::avx512vl ? avx512vl::multiply_by_keys
                          : vectors == Vectors::avx512 ? avx512::multiply_by_keys
                                                       : avx2::multiply_by_keys;
    multiply(dtype, rows, dim, left, keys, scores, stride);
}

bool has_bf16_products(int dim) {
    return dim % avx512vl::kPairs == 0 && vectors_for(dim) == Vectors::avx512vl;
}

void multiply_bf16_by_keys(int rows, int dim, const std::uint16_t* left, const MemoryRows& keys,
                           float* scores, std::int64_t stride) {
    avx512vl::multiply_bf16_by_keys(rows, dim, left, keys, scores, stride);
}

void add_weighted_values(DType dtype, int rows, int dim, const float* weights, std::int64_t stride,
                         const MemoryRows& values, float* out) {
    const Vectors vectors = vectors_for(dim);
    const auto add = vectors == Vectors::avx512vl ? avx512vl::add_weighted_values
                     : vectors == Vectors::avx512 ? avx512::add_weighted_values
                                                  : avx2::add_weighted_values;
    add(dtype, rows, dim, weights, stride, values, out);
}

// One row takes longer to interleave its values than to widen them.
bool has_bf16_weights(int rows, int dim) {
    return rows > 1 && dim % (2 * avx512vl::kPairs) == 0 && vectors_for(dim) == Vectors::avx512vl;
}

ReadingOrder bf16_reading_order(int dim) {
    return {avx512vl::kPairBytesAhead / (dim * avx512vl::PairsOfBf16::kBytes),
            avx512vl::kKeysAtOnce};
}

void round_weights(int rows, std::int64_t keys, const float* weights, std::int64_t stride,
                   std::uint16_t* rounded) {
    avx512vl::round_weights(rows, keys, weights, stride, rounded);
}

void add_bf16_weighted_values(int rows, int dim, const std::uint16_t* weights, std::int64_t stride,
                              const MemoryRows& values, float* out) {
    avx512vl::add_bf16_weighted_values(rows, dim, weights, stride, values, out);
}

#else

bool has_skinny_products(int) { return false; }
ReadingOrder reading_order(int, std::int64_t) { return {}; }
void multiply_by_keys(DType, int, int, const float*, const MemoryRows&, float*, std::int64_t) {}
bool has_bf16_products(int) { return false; }
void multiply_bf16_by_keys(int, int, const std::uint16_t*, const MemoryRows&, float*,
                           std::int64_t) {}
void add_weighted_values(DType, int, int, const float*, std::int64_t, const MemoryRows&, float*) {}
bool has_bf16_weights(int, int) { return false; }
ReadingOrder bf16_reading_order(int) { return {}; }
void round_weights(int, std::int64_t, const float*, std::int64_t, std::uint16_t*) {}
void add_bf16_weighted_values(int, int, const std::uint16_t*, std::int64_t, const MemoryRows&,
                              float*) {}

#endif

} // namespace flexc::cpu
