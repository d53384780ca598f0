#include "cpu/backend/tiles.h"

#include <libxsmm.h>

#include "cpu/backend/flush_denormals.h"

namespace flexc::cpu {

namespace {

float left_at(const Product& product, const float* left, int row, int inner) {
    return product.left_transposed ? left[std::int64_t{inner} * product.left_stride + row]
                                   : left[std::int64_t{row} * product.left_stride + inner];
}

} // namespace

void multiply_skipping_zeros(const Product& product, const float* left, const float* right,
                             float* out) {
    for (int row = 0; row < product.rows; ++row) {
        float* out_row = out + std::int64_t{row} * product.out_stride;
        if (!product.accumulate)
            for (int column = 0; column < product.columns; ++column)
                out_row[column] = 0;
        for (int inner = 0; inner < product.inner; ++inner) {
            const float factor = left_at(product, left, row, inner);
            if (factor == 0) continue;
            const float* right_row = right + std::int64_t{inner} * product.right_stride;
            for (int column = 0; column < product.columns; ++column)
                out_row[column] += factor * right_row[column];
        }
    }
}

void multiply(const Product& product, const float* left, const float* right, float* out) {
    const FlushDenormals flush;
    // libxsmm is column-major, so the factors change places.
    const float alpha = 1, beta = product.accumulate ? 1 : 0;
    const int flags = product.left_transposed ? LIBXSMM_GEMM_FLAG_TRANS_B : 0;
    const int prefetch = LIBXSMM_GEMM_PREFETCH_NONE;
    const libxsmm_smmfunction kernel = libxsmm_smmdispatch(
        product.columns, product.rows, product.inner, &product.right_stride, &product.left_stride,
        &product.out_stride, &alpha, &beta, &flags, &prefetch);
    if (kernel != nullptr)
        kernel(right, left, out);
    else // a processor that libxsmm makes no code for
        multiply_skipping_zeros(product, left, right, out);
}

std::string tiles_description() {
    return std::string("libxsmm ") + LIBXSMM_VERSION + " (" + libxsmm_get_target_arch() + ")";
}

} // namespace flexc::cpu
