#include "cpu/backend/part_tiles.h"

#include <algorithm>

#include "cpu/backend/amx.h"
#include "cpu/backend/avx512_bits.h"
#include "cpu/backend/part_products.h"

namespace flexc::cpu::parts {

namespace {

bool suits(const KernelShape& shape, const AttentionArguments& in) {
    return most_parts(shape) > 0 && in.q.stride_d == 1 && in.k.stride_d == 1 &&
           in.v.stride_d == 1 && may_round_weights(in);
}

} // namespace

Unit unit_for(const KernelShape& shape, const AttentionArguments& in) {
    if (!suits(shape, in)) return Unit::none;
    const auto both_dims = [&](bool (*suits)(int)) {
        return suits(shape.head_dim) && suits(shape.head_dim_v);
    };
    if (both_dims(amx::suits)) return Unit::matrix_unit;
    // f16 has four products of parts, where f32 takes as long as two.
    return shape.dtype == DType::bf16 && both_dims(dots::suits) ? Unit::dot_products : Unit::none;
}

#if defined(__x86_64__)

namespace {

using avx512::rounded, avx512::upper_halves, avx512::transpose;

// Right sides are tiles of 16 pairs by 16 columns.
constexpr int kTileRows = 16, kTileColumns = 16, kPairs = 2 * kTileColumns;
constexpr std::int64_t kTileNumbers = kTileRows * kPairs;
static_assert(kTileUnit == 2 * kTileRows && kTileUnit == kPairs);

// Dims of queries and keys are packed with zeros after the last: as many as fit the room, as those
// of two parts are multiples of kPairs already.
constexpr int padded(int dim) { return (dim + kPairs - 1) / kPairs * kPairs; }
// The numbers from `d` on that a row has.
constexpr __mmask32 mask_of(int dim, int d) {
    return dim - d >= kPairs ? ~__mmask32{0} : (__mmask32{1} << (dim - d)) - 1;
}

// 32 numbers of a row as bits of bf16, zeros where the mask is. Returns their exponents.
struct LoadBf16 {
    static constexpr int kParts = 1;
    FLEXC_AVX512_INLINE __m512i at(const char* from, __mmask32 mask, __m512i (&part)[kParts]) {
        return part[0] = _mm512_maskz_loadu_epi16(mask, from);
    }
};
struct LoadF16 {
    static constexpr int kParts = 2;
    // The first part, rounded, has 8 of the 11 bits, and what is left has 3.
    FLEXC_AVX512_INLINE __m512i at(const char* from, __mmask32, __m512i (&part)[kParts]) {
        __m512 whole[2], high[2], low[2];
        for (int i = 0; i < 2; ++i) {
            whole[i] = _mm512_cvtph_ps(
                _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * 32)));
            high[i] = rounded(whole[i]);
            low[i] = _mm512_sub_ps(whole[i], high[i]);
        }
        part[0] = upper_halves(high[0], high[1]);
        part[1] = upper_halves(low[0], low[1]);
        return upper_halves(whole[0], whole[1]);
    }
};

// Calls visit(the loader of this type).
template <typename Visit> auto with_load(DType dtype, const Visit& visit) {
    return dtype == DType::f16 ? visit(LoadF16()) : visit(LoadBf16());
}

// Keeps the largest exponents, lane by lane.
FLEXC_AVX512_INLINE void note(__m512i& largest, __m512i bits) {
    largest = _mm512_max_epu16(largest, _mm512_and_si512(bits, _mm512_set1_epi16(0x7f80)));
}
FLEXC_AVX512_INLINE Magnitude magnitude_of(__m512i largest) {
    alignas(64) std::uint16_t of[kPairs];
    _mm512_store_si512(of, largest);
    return cpu::magnitude_of(std::uint32_t{*std::max_element(of, of + kPairs)} << 16);
}

template <typename Load>
FLEXC_AVX512 Magnitude pack_rows(const RowList& rows, int dim, std::int64_t padded,
                                 std::uint16_t* packed) {
    __m512i largest = _mm512_setzero_si512();
    for (std::int64_t row = 0; row < rows.count; ++row)
        for (int d = 0; d < dim; d += kPairs) {
            __m512i part[Load::kParts];
            note(largest, Load::at(rows.at(row) + d * 2, mask_of(dim, d), part));
            for (int i = 0; i < Load::kParts; ++i)
                _mm512_storeu_si512(packed + row * query_stride(dim) + i * dim + d, part[i]);
        }
    std::fill(packed + rows.count * query_stride(dim), packed + padded * query_stride(dim),
              std::uint16_t{0});
    return magnitude_of(largest);
}

// Tiles of 16 keys, each a column, by 16 pairs of dims: all dims of 16 keys lie together.
template <typename Load>
FLEXC_AVX512 Magnitude pack_columns(const RowList& keys, int dim, std::int64_t room,
                                    std::uint16_t* packed) {
    __m512i largest = _mm512_setzero_si512();
    const std::int64_t padded = (keys.count + kTileUnit - 1) / kTileUnit * kTileUnit;
    for (std::int64_t first = 0; first < padded; first += kTileColumns)
        for (int d = 0; d < dim; d += kPairs, packed += kTileNumbers) {
            __m512i of[Load::kParts][kTileColumns];
            for (int key = 0; key < kTileColumns; ++key) {
                __m512i part[Load::kParts] = {};
                if (first + key < keys.count)
                    note(largest, Load::at(keys.at(first + key) + d * 2, mask_of(dim, d), part));
                for (int i = 0; i < Load::kParts; ++i)
                    of[i][key] = part[i];
            }
            for (int i = 0; i < Load::kParts; ++i) {
                transpose(of[i]);
                for (int pair = 0; pair < kTileRows; ++pair)
                    _mm512_storeu_si512(packed + i * room * dim + pair * kPairs, of[i][pair]);
            }
        }
    return magnitude_of(largest);
}

// Tiles of 16 pairs of keys by 16 dims: all dims of 32 keys lie together. A pair is two keys that
// are 16 apart, as weights are packed.
template <typename Load>
FLEXC_AVX512 Magnitude pack_pairs(const RowList& values, int dim, std::int64_t room,
                                  std::uint16_t* packed) {
    alignas(64) static constexpr auto kInterleaved = [] {
        std::array<std::array<std::uint16_t, 32>, 2> from{};
        for (std::uint16_t half = 0; half < 2; ++half)
            for (std::uint16_t i = 0; i < 32; ++i)
                from[half][i] = static_cast<std::uint16_t>(half * 16 + i / 2 + i % 2 * 32);
        return from;
    }();
    __m512i largest = _mm512_setzero_si512();
    for (std::int64_t first = 0; first < values.count; first += kTileUnit)
        for (int d = 0; d < dim; d += kPairs) {
            const int halves = std::min((dim - d) / kTileColumns, 2);
            for (int pair = 0; pair < kTileRows; ++pair) {
                __m512i part[2][Load::kParts] = {};
                for (int i = 0; i < 2; ++i) {
                    const std::int64_t key = first + pair + i * kTileRows;
                    if (key < values.count)
                        note(largest, Load::at(values.at(key) + d * 2, mask_of(dim, d), part[i]));
                }
                for (int i = 0; i < Load::kParts; ++i)
                    for (int half = 0; half < halves; ++half)
                        _mm512_storeu_si512(
                            packed + i * room * dim + half * kTileNumbers + pair * kPairs,
                            _mm512_permutex2var_epi16(part[0][i],
                                                      _mm512_load_si512(kInterleaved[half].data()),
                                                      part[1][i]));
            }
            packed += halves * kTileNumbers;
        }
    return magnitude_of(largest);
}

constexpr int weight_parts(DType dtype) { return dtype == DType::bf16 ? 1 : 2; }

// Weights of 32 keys as bits of bf16: those of 16 keys, each beside that of the key 16 after it.
// What is left of them takes their place.
FLEXC_AVX512_INLINE __m512i take_part(__m512 (&weights)[2]) {
    constexpr __mmask32 kOdd = 0xaaaaaaaa;
    __m512i part[2];
    for (int i = 0; i < 2; ++i) {
        const __m512 number = rounded(weights[i]);
        weights[i] = _mm512_sub_ps(weights[i], number);
        part[i] = _mm512_castps_si512(number);
    }
    return _mm512_mask_blend_epi16(kOdd, _mm512_srli_epi32(part[0], 16), part[1]);
}

} // namespace

Magnitude pack_queries(DType dtype, const RowList& rows, int dim, std::int64_t padded,
                       std::uint16_t* packed) {
    return with_load(
        dtype, [&](auto load) { return pack_rows<decltype(load)>(rows, dim, padded, packed); });
}

Magnitude pack_keys(DType dtype, const RowList& keys, int dim, std::int64_t room,
                    std::uint16_t* packed) {
    return with_load(
        dtype, [&](auto load) { return pack_columns<decltype(load)>(keys, dim, room, packed); });
}

Magnitude pack_values(DType dtype, const RowList& values, int dim, std::int64_t room,
                      std::uint16_t* packed) {
    return with_load(
        dtype, [&](auto load) { return pack_pairs<decltype(load)>(values, dim, room, packed); });
}

// A row with NaN need not keep it: the sum of its weights, by which it is divided, does.
FLEXC_AVX512 void pack_weights(DType dtype, std::int64_t rows, std::int64_t keys, float* weights,
                               std::int64_t stride) {
    const int parts = weight_parts(dtype);
    for (std::int64_t row = 0; row < rows; ++row) {
        float* const from = weights + row * stride;
        std::uint16_t* to = bits(from);
        for (std::int64_t key = 0; key < keys; key += kTileUnit) {
            __m512 of[2] = {_mm512_loadu_ps(from + key), _mm512_loadu_ps(from + key + kTileRows)};
            for (int part = 0; part < parts; ++part, to += kTileUnit)
                _mm512_storeu_si512(to, take_part(of));
        }
    }
}

void multiply_by_keys(const TileProduct& product, const std::uint16_t* queries,
                      const std::uint16_t* keys, float* scores, std::int64_t stride) {
    const std::int64_t dim = padded(product.dim);
    const Product all{
        .rows = product.rows,
        .columns = product.keys,
        .inner = product.dim,
        .left = {queries, query_stride(product.dim), kTileUnit, dim},
        .right = {keys + product.first * dim, kTileColumns * dim, kTileNumbers, product.room * dim},
        .out = scores,
        .out_stride = stride,
        .accumulate = false};
    if (product.unit == Unit::dot_products) return dots::multiply(all);
    product.dtype == DType::bf16 ? amx::multiply(all) : amx::multiply_two_parts(all);
}

// The product of both second parts is as small as what weights miss.
void add_weighted_values(const TileProduct& product, const float* weights, std::int64_t stride,
                         const std::uint16_t* values, float* out, bool accumulate) {
    const std::int64_t dim = product.dim;
    const Product all{
        .rows = product.rows,
        .columns = dim,
        .inner = product.keys,
        .left = {bits(weights), 2 * stride, weight_parts(product.dtype) * kTileUnit, kTileUnit},
        .right = {values + product.first * dim, kTileNumbers, kTileUnit * dim, product.room * dim},
        .out = out,
        .out_stride = dim,
        .accumulate = accumulate};
    if (product.unit == Unit::dot_products) return dots::multiply(all);
    product.dtype == DType::bf16 ? amx::multiply(all) : amx::multiply_upper_parts(all);
}

#else

Magnitude pack_queries(DType, const RowList&, int, std::int64_t, std::uint16_t*) { return {}; }
Magnitude pack_keys(DType, const RowList&, int, std::int64_t, std::uint16_t*) { return {}; }
Magnitude pack_values(DType, const RowList&, int, std::int64_t, std::uint16_t*) { return {}; }
void pack_weights(DType, std::int64_t, std::int64_t, float*, std::int64_t) {}
void multiply_by_keys(const TileProduct&, const std::uint16_t*, const std::uint16_t*, float*,
                      std::int64_t) {}
void add_weighted_values(const TileProduct&, const float*, std::int64_t, const std::uint16_t*,
                         float*, bool) {}

#endif

} // namespace flexc::cpu::parts
