#include "cpu/backend/tensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "support/floats.h"

namespace flexc::cpu {

using support::Bf16;
using support::F16;
using support::F32;

namespace {

// Callers' memory need not be aligned.
template <typename T> T read_at(const void* base, std::int64_t element) {
    T value;
    std::memcpy(&value,
                static_cast<const char*>(base) + element * static_cast<std::int64_t>(sizeof(T)),
                sizeof(T));
    return value;
}
template <typename T> void write_at(void* base, std::int64_t element, T value) {
    std::memcpy(static_cast<char*>(base) + element * static_cast<std::int64_t>(sizeof(T)), &value,
                sizeof(T));
}

std::int64_t offset_of(const TensorArgument& tensor, const Rows& rows) {
    return rows.b * tensor.stride_b + rows.h * tensor.stride_h + rows.first * tensor.stride_s;
}

constexpr std::uint32_t kExponent = 0x7f800000;

// Of values whose bits of the exponent are at most these.
constexpr Magnitude magnitude_of(std::uint32_t exponent) {
    return {exponent != kExponent, exponent < std::bit_cast<std::uint32_t>(kModerateInput)};
}

template <typename Format>
Magnitude load_as(const TensorArgument& tensor, const Rows& rows, int dim, float* out) {
    using Bits = typename Format::Bits;
    const std::int64_t start = offset_of(tensor, rows);
    std::uint32_t largest = 0;
    for (std::int64_t row = 0; row < rows.count; ++row, out += dim) {
        const std::int64_t from = start + row * tensor.stride_s;
        if (tensor.stride_d == 1)
            for (int d = 0; d < dim; ++d)
                out[d] = Format::widen(read_at<Bits>(tensor.data, from + d));
        else
            for (int d = 0; d < dim; ++d)
                out[d] = Format::widen(read_at<Bits>(tensor.data, from + d * tensor.stride_d));
        for (int d = 0; d < dim; ++d)
            largest = std::max(largest, std::bit_cast<std::uint32_t>(out[d]) & kExponent);
    }
    return magnitude_of(largest);
}

template <typename Format>
Magnitude load_transposed_as(const TensorArgument& tensor, const Rows& rows, int dim, float* out,
                             std::int64_t stride) {
    using Bits = typename Format::Bits;
    // Squares keep both sides in the first-level cache.
    constexpr std::int64_t kSquare = 16;
    const std::int64_t start = offset_of(tensor, rows);
    std::uint32_t largest = 0;
    for (std::int64_t row0 = 0; row0 < rows.count; row0 += kSquare) {
        const std::int64_t row1 = std::min(row0 + kSquare, rows.count);
        for (std::int64_t d0 = 0; d0 < dim; d0 += kSquare) {
            const std::int64_t d1 = std::min<std::int64_t>(d0 + kSquare, dim);
            for (std::int64_t d = d0; d < d1; ++d)
                for (std::int64_t row = row0; row < row1; ++row) {
                    const float value = Format::widen(read_at<Bits>(
                        tensor.data, start + row * tensor.stride_s + d * tensor.stride_d));
                    out[d * stride + row] = value;
                    largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & kExponent);
                }
        }
    }
    return magnitude_of(largest);
}

template <typename Format>
void store_as(const TensorArgument& tensor, bool accumulate, const Rows& rows, int dim,
              const float* in, std::int64_t stride) {
    using Bits = typename Format::Bits;
    const std::int64_t start = offset_of(tensor, rows);
    for (std::int64_t row = 0; row < rows.count; ++row, in += stride) {
        const std::int64_t to = start + row * tensor.stride_s;
        for (int d = 0; d < dim; ++d) {
            const std::int64_t element = to + d * tensor.stride_d;
            const float before =
                accumulate ? Format::widen(read_at<Bits>(tensor.data, element)) : 0.0f;
            write_at(tensor.data, element, Format::narrow(accumulate ? before + in[d] : in[d]));
        }
    }
}

} // namespace

Magnitude load_rows(const TensorArgument& tensor, DType dtype, const Rows& rows, int dim,
                    float* out, std::int64_t padded_rows) {
    std::fill(out + rows.count * dim, out + padded_rows * dim, 0.0f);
    switch (dtype) {
    case DType::f16: return load_as<F16>(tensor, rows, dim, out);
    case DType::bf16: return load_as<Bf16>(tensor, rows, dim, out);
    default: return load_as<F32>(tensor, rows, dim, out);
    }
}

Magnitude load_transposed(const TensorArgument& tensor, DType dtype, const Rows& rows, int dim,
                          float* out, std::int64_t stride, std::int64_t padded_rows) {
    for (int d = 0; d < dim; ++d)
        std::fill(out + d * stride + rows.count, out + d * stride + padded_rows, 0.0f);
    switch (dtype) {
    case DType::f16: return load_transposed_as<F16>(tensor, rows, dim, out, stride);
    case DType::bf16: return load_transposed_as<Bf16>(tensor, rows, dim, out, stride);
    default: return load_transposed_as<F32>(tensor, rows, dim, out, stride);
    }
}

void store_rows(const TensorArgument& tensor, DType dtype, unsigned flags, const Rows& rows,
                int dim, const float* in, std::int64_t stride) {
    const bool accumulate = (flags & kOutputAccumulate) != 0;
    if ((flags & kOutputF32) != 0) dtype = DType::f32;
    switch (dtype) {
    case DType::f16: return store_as<F16>(tensor, accumulate, rows, dim, in, stride);
    case DType::bf16: return store_as<Bf16>(tensor, accumulate, rows, dim, in, stride);
    default: return store_as<F32>(tensor, accumulate, rows, dim, in, stride);
    }
}

} // namespace flexc::cpu
