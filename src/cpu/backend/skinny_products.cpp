#include "cpu/backend/skinny_products.h"

#include "cpu/backend/avx2.h"
#include "cpu/backend/avx512.h"

namespace flexc::cpu {

#if defined(__x86_64__)

bool has_skinny_products(int dim) { return dim % avx2::kLanes == 0 && has_avx2(); }

void multiply_by_keys(DType dtype, int rows, int dim, const float* left, const MemoryRows& keys,
                      float* scores, std::int64_t stride) {
    const auto multiply = avx512::suits(dim) ? avx512::multiply_by_keys : avx2::multiply_by_keys;
    multiply(dtype, rows, dim, left, keys, scores, stride);
}

void add_weighted_values(DType dtype, int rows, int dim, const float* weights, std::int64_t stride,
                         const MemoryRows& values, float* out) {
    const auto add = avx512::suits(dim) ? avx512::add_weighted_values : avx2::add_weighted_values;
    add(dtype, rows, dim, weights, stride, values, out);
}

#else

bool has_skinny_products(int) { return false; }
void multiply_by_keys(DType, int, int, const float*, const MemoryRows&, float*, std::int64_t) {}
void add_weighted_values(DType, int, int, const float*, std::int64_t, const MemoryRows&, float*) {}

#endif

} // namespace flexc::cpu
