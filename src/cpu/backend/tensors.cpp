#include "cpu/backend/tensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu/backend/avx2.h"
#include "support/floats.h"

namespace flexc::cpu {

using support::Bf16;
using support::E4m3;
using support::E5m2;
using support::F16;
using support::F32;
using support::I8;

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

template <typename Format> constexpr bool kIsScaled = sizeof(typename Format::Bits) == 1;

template <typename Format> float widen(typename Format::Bits bits, [[maybe_unused]] float scale) {
    if constexpr (kIsScaled<Format>)
        return Format::widen(bits) * scale;
    else
        return Format::widen(bits);
}

#if defined(__x86_64__)

// Keeps the largest exponents, lane by lane.
FLEXC_AVX2_INLINE void note(__m256i& largest, __m256 values) {
    const __m256i exponent = _mm256_set1_epi32(kExponent);
    largest = _mm256_max_epu32(largest, _mm256_and_si256(_mm256_castps_si256(values), exponent));
}
FLEXC_AVX2_INLINE std::uint32_t largest_of(__m256i lanes) {
    alignas(32) std::uint32_t of[avx2::kLanes];
    _mm256_store_si256(reinterpret_cast<__m256i*>(of), lanes);
    return *std::max_element(of, of + avx2::kLanes);
}

// Returns the largest exponent. stride: between rows, in bytes.
template <typename Load>
FLEXC_AVX2 std::uint32_t widen_rows(const char* from, std::int64_t stride, std::int64_t rows,
                                    int dim, float* out, float scale) {
    const __m256 scales = _mm256_set1_ps(scale);
    __m256i largest = _mm256_setzero_si256();
    for (std::int64_t row = 0; row < rows; ++row, out += dim)
        for (std::int64_t d = 0; d < dim; d += avx2::kLanes) {
            const __m256 values =
                avx2::load_scaled<Load>(from + row * stride + d * Load::kBytes, scales);
            _mm256_storeu_ps(out + d, values);
            note(largest, values);
        }
    return largest_of(largest);
}

FLEXC_AVX2_INLINE void transpose(__m256 (&x)[8]) {
    __m256 pairs[8], fours[8];
    for (int i = 0; i < 4; ++i) {
        pairs[2 * i] = _mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]);
    }
    for (int half = 0; half < 2; ++half)
        for (int i = 0; i < 2; ++i) {
            const __m256 low = pairs[4 * half + i], high = pairs[4 * half + 2 + i];
            fours[4 * half + 2 * i] = _mm256_shuffle_ps(low, high, 0x44);
            fours[4 * half + 2 * i + 1] = _mm256_shuffle_ps(low, high, 0xee);
        }
    for (int i = 0; i < 4; ++i) {
        x[i] = _mm256_permute2f128_ps(fours[i], fours[4 + i], 0x20);
        x[4 + i] = _mm256_permute2f128_ps(fours[i], fours[4 + i], 0x31);
    }
}

// Rows and dims are multiples of eight. Two squares of eight rows fill a line of the output.
template <typename Load>
FLEXC_AVX2 std::uint32_t widen_transposed(const char* from, std::int64_t stride, std::int64_t rows,
                                          int dim, float* out, std::int64_t out_stride,
                                          float scale) {
    constexpr std::int64_t kLineRows = 16;
    const __m256 scales = _mm256_set1_ps(scale);
    __m256i largest = _mm256_setzero_si256();
    for (std::int64_t first = 0; first < rows; first += kLineRows)
        for (std::int64_t d = 0; d < dim; d += avx2::kLanes)
            for (std::int64_t row = first; row < std::min(first + kLineRows, rows);
                 row += avx2::kLanes) {
                __m256 square[8];
                for (int i = 0; i < 8; ++i) {
                    square[i] = avx2::load_scaled<Load>(
                        from + (row + i) * stride + d * Load::kBytes, scales);
                    note(largest, square[i]);
                }
                transpose(square);
                for (int i = 0; i < 8; ++i)
                    _mm256_storeu_ps(out + (d + i) * out_stride + row, square[i]);
            }
    return largest_of(largest);
}

template <typename Format> struct LoadOf {
    using Type = avx2::LoadF32;
};
template <> struct LoadOf<F16> {
    using Type = avx2::LoadF16;
};
template <> struct LoadOf<Bf16> {
    using Type = avx2::LoadBf16;
};
template <> struct LoadOf<E4m3> {
    using Type = avx2::LoadE4m3;
};
template <> struct LoadOf<E5m2> {
    using Type = avx2::LoadE5m2;
};
template <> struct LoadOf<I8> {
    using Type = avx2::LoadI8;
};

bool is_for_avx2(const TensorArgument& tensor, int dim) {
    return tensor.stride_d == 1 && dim % avx2::kLanes == 0 && has_avx2();
}

#endif

template <typename Format>
Magnitude load_as(const TensorArgument& tensor, const Rows& rows, int dim, float* out,
                  float scale = 1) {
    using Bits = typename Format::Bits;
    const std::int64_t start = offset_of(tensor, rows);
    std::uint32_t largest = 0;
#if defined(__x86_64__)
    if (is_for_avx2(tensor, dim)) {
        using Load = typename LoadOf<Format>::Type;
        return magnitude_of(
            widen_rows<Load>(static_cast<const char*>(tensor.data) + start * Load::kBytes,
                             tensor.stride_s * Load::kBytes, rows.count, dim, out, scale));
    }
#endif
    for (std::int64_t row = 0; row < rows.count; ++row, out += dim) {
        const std::int64_t from = start + row * tensor.stride_s;
        if (tensor.stride_d == 1)
            for (int d = 0; d < dim; ++d)
                out[d] = widen<Format>(read_at<Bits>(tensor.data, from + d), scale);
        else
            for (int d = 0; d < dim; ++d)
                out[d] =
                    widen<Format>(read_at<Bits>(tensor.data, from + d * tensor.stride_d), scale);
        for (int d = 0; d < dim; ++d)
            largest = std::max(largest, std::bit_cast<std::uint32_t>(out[d]) & kExponent);
    }
    return magnitude_of(largest);
}

template <typename Format>
Magnitude load_transposed_as(const TensorArgument& tensor, const Rows& rows, int dim, float* out,
                             std::int64_t stride, float scale = 1) {
    using Bits = typename Format::Bits;
    // Squares keep both sides in the first-level cache.
    constexpr std::int64_t kSquare = 16;
    const std::int64_t start = offset_of(tensor, rows);
    std::uint32_t largest = 0;
    std::int64_t done = 0;
#if defined(__x86_64__)
    if (is_for_avx2(tensor, dim)) {
        using Load = typename LoadOf<Format>::Type;
        done = rows.count / avx2::kLanes * avx2::kLanes;
        largest =
            widen_transposed<Load>(static_cast<const char*>(tensor.data) + start * Load::kBytes,
                                   tensor.stride_s * Load::kBytes, done, dim, out, stride, scale);
    }
#endif
    for (std::int64_t row0 = done; row0 < rows.count; row0 += kSquare) {
        const std::int64_t row1 = std::min(row0 + kSquare, rows.count);
        for (std::int64_t d0 = 0; d0 < dim; d0 += kSquare) {
            const std::int64_t d1 = std::min<std::int64_t>(d0 + kSquare, dim);
            for (std::int64_t d = d0; d < d1; ++d)
                for (std::int64_t row = row0; row < row1; ++row) {
                    const float value =
                        widen<Format>(read_at<Bits>(tensor.data, start + row * tensor.stride_s +
                                                                     d * tensor.stride_d),
                                      scale);
                    out[d * stride + row] = value;
                    largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & kExponent);
                }
        }
    }
    return magnitude_of(largest);
}

#if defined(__x86_64__)

// Eight numbers as Format::narrow() rounds them.
FLEXC_AVX2_INLINE void store_narrow(F16, std::uint16_t* to, __m256 values) {
    // Every NaN is the same but for its sign.
    const __m256 sign = _mm256_and_ps(values, _mm256_set1_ps(-0.0f));
    const __m256 nan = _mm256_or_ps(sign, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)));
    const __m256 one_nan =
        _mm256_blendv_ps(values, nan, _mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_cvtps_ph(one_nan, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
FLEXC_AVX2_INLINE void store_narrow(Bf16, std::uint16_t* to, __m256 values) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    const __m256i whole = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, nan, is_nan), 16);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(to),
        _mm_packus_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1)));
}
FLEXC_AVX2_INLINE void store_narrow(F32, float* to, __m256 values) { _mm256_storeu_ps(to, values); }

// stride: between rows, in elements.
template <typename Format>
FLEXC_AVX2 void narrow_rows(const float* in, std::int64_t stride, std::int64_t rows, int dim,
                            typename Format::Bits* out, std::int64_t out_stride) {
    for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t d = 0; d < dim; d += avx2::kLanes)
            store_narrow(Format(), out + row * out_stride + d,
                         _mm256_loadu_ps(in + row * stride + d));
}

#endif

template <typename Format>
void store_as(const TensorArgument& tensor, bool accumulate, const Rows& rows, int dim,
              const float* in, std::int64_t stride) {
    using Bits = typename Format::Bits;
    const std::int64_t start = offset_of(tensor, rows);
#if defined(__x86_64__)
    if (!accumulate && is_for_avx2(tensor, dim))
        return narrow_rows<Format>(in, stride, rows.count, dim,
                                   static_cast<Bits*>(tensor.data) + start, tensor.stride_s);
#endif
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
                    float* out, std::int64_t padded_rows, float scale) {
    std::fill(out + rows.count * dim, out + padded_rows * dim, 0.0f);
    switch (dtype) {
    case DType::f16: return load_as<F16>(tensor, rows, dim, out);
    case DType::bf16: return load_as<Bf16>(tensor, rows, dim, out);
    case DType::e4m3: return load_as<E4m3>(tensor, rows, dim, out, scale);
    case DType::e5m2: return load_as<E5m2>(tensor, rows, dim, out, scale);
    case DType::i8: return load_as<I8>(tensor, rows, dim, out, scale);
    default: return load_as<F32>(tensor, rows, dim, out);
    }
}

Magnitude load_transposed(const TensorArgument& tensor, DType dtype, const Rows& rows, int dim,
                          float* out, std::int64_t stride, std::int64_t padded_rows, float scale) {
    for (int d = 0; d < dim; ++d)
        std::fill(out + d * stride + rows.count, out + d * stride + padded_rows, 0.0f);
    switch (dtype) {
    case DType::f16: return load_transposed_as<F16>(tensor, rows, dim, out, stride);
    case DType::bf16: return load_transposed_as<Bf16>(tensor, rows, dim, out, stride);
    case DType::e4m3: return load_transposed_as<E4m3>(tensor, rows, dim, out, stride, scale);
    case DType::e5m2: return load_transposed_as<E5m2>(tensor, rows, dim, out, stride, scale);
    case DType::i8: return load_transposed_as<I8>(tensor, rows, dim, out, stride, scale);
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
