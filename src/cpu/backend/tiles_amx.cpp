#include "cpu/backend/tiles_amx.h"

#include <algorithm>

namespace flexc::cpu::amx {

bool suits_tiles(const KernelShape& shape, const AttentionArguments& in) {
    return most_parts(shape) > 0 && in.q.stride_d == 1 && suits(shape, in);
}

#if defined(__x86_64__) && defined(__linux__)

namespace {

constexpr std::int64_t kTileNumbers = kTileRows * kPairs; // bf16 numbers of a tile
constexpr int kWeightParts = 2;
static_assert(kTileUnit == 2 * kTileRows && kTileUnit == kPairs);

// 32 numbers of a row as bits of bf16. Returns their exponents.
struct LoadBf16 {
    static constexpr int kParts = 1;
    FLEXC_AMX_INLINE __m512i at(const char* from, __m512i (&part)[kParts]) {
        return part[0] = _mm512_loadu_si512(from);
    }
};
struct LoadF16 {
    static constexpr int kParts = 2;
    // The first part, rounded, has 8 of the 11 bits, and what is left has 3.
    FLEXC_AMX_INLINE __m512i at(const char* from, __m512i (&part)[kParts]) {
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
FLEXC_AMX_INLINE void note(__m512i& largest, __m512i bits) {
    largest = _mm512_max_epu16(largest, _mm512_and_si512(bits, _mm512_set1_epi16(0x7f80)));
}
FLEXC_AMX_INLINE Magnitude magnitude_of(__m512i largest) {
    alignas(64) std::uint16_t of[kPairs];
    _mm512_store_si512(of, largest);
    return cpu::magnitude_of(std::uint32_t{*std::max_element(of, of + kPairs)} << 16);
}

template <typename Load>
FLEXC_AMX Magnitude pack_rows(const RowList& rows, int dim, std::int64_t padded,
                              std::uint16_t* packed) {
    __m512i largest = _mm512_setzero_si512();
    for (std::int64_t row = 0; row < rows.count; ++row)
        for (int d = 0; d < dim; d += kPairs) {
            __m512i part[Load::kParts];
            note(largest, Load::at(row_at(rows, row) + d * 2, part));
            for (int i = 0; i < Load::kParts; ++i)
                _mm512_storeu_si512(packed + row * query_stride(dim) + i * dim + d, part[i]);
        }
    std::fill(packed + rows.count * query_stride(dim), packed + padded * query_stride(dim),
              std::uint16_t{0});
    return magnitude_of(largest);
}

// Tiles of 16 keys, each a column, by 16 pairs of dims: all dims of 16 keys lie together.
template <typename Load>
FLEXC_AMX Magnitude pack_columns(const RowList& keys, int dim, std::int64_t room,
                                 std::uint16_t* packed) {
    __m512i largest = _mm512_setzero_si512();
    const std::int64_t padded = (keys.count + kTileUnit - 1) / kTileUnit * kTileUnit;
    for (std::int64_t first = 0; first < padded; first += kTileColumns)
        for (int d = 0; d < dim; d += kPairs, packed += kTileNumbers) {
            __m512i of[Load::kParts][kTileColumns];
            for (int key = 0; key < kTileColumns; ++key) {
                __m512i part[Load::kParts] = {};
                if (first + key < keys.count)
                    note(largest, Load::at(row_at(keys, first + key) + d * 2, part));
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
FLEXC_AMX Magnitude pack_pairs(const RowList& values, int dim, std::int64_t room,
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
        for (int d = 0; d < dim; d += kPairs, packed += 2 * kTileNumbers)
            for (int pair = 0; pair < kTileRows; ++pair) {
                __m512i part[2][Load::kParts] = {};
                for (int i = 0; i < 2; ++i) {
                    const std::int64_t key = first + pair + i * kTileRows;
                    if (key < values.count)
                        note(largest, Load::at(row_at(values, key) + d * 2, part[i]));
                }
                for (int i = 0; i < Load::kParts; ++i)
                    for (int half = 0; half < 2; ++half)
                        _mm512_storeu_si512(
                            packed + i * room * dim + half * kTileNumbers + pair * kPairs,
                            _mm512_permutex2var_epi16(part[0][i],
                                                      _mm512_load_si512(kInterleaved[half].data()),
                                                      part[1][i]));
            }
    return magnitude_of(largest);
}

// One side of a product, in elements. stride: on the left from row to row; on the right from 16
// columns to the next, and `inner` from 32 inner ones to the next.
struct Factor {
    const std::uint16_t* data;
    std::int64_t stride, inner, part;
};

// out[rows][columns] = left right, by squares of 32: four tiles of sums, two of each side. Products
// of parts are summed whose numbers add up to kMostOrder at most.
template <int kLeftParts, int kRightParts, int kMostOrder = kLeftParts + kRightParts>
FLEXC_AMX void multiply(std::int64_t rows, std::int64_t columns, std::int64_t inner,
                        const Factor& left, const Factor& right, float* out,
                        std::int64_t out_stride, bool accumulate) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile)
        config.set(tile, kTileRows, kLineBytes);
    load_config(config);
    const std::int64_t left_bytes = left.stride * 2, out_bytes = out_stride * 4;
    for (std::int64_t column = 0; column < columns; column += kTileUnit)
        for (std::int64_t row = 0; row < rows; row += kTileUnit) {
            float* const to = out + row * out_stride + column;
            float* const below = to + kTileRows * out_stride;
            compiler_barrier();
            if (accumulate) {
                _tile_loadd(0, to, out_bytes);
                _tile_loadd(1, to + kTileColumns, out_bytes);
                _tile_loadd(2, below, out_bytes);
                _tile_loadd(3, below + kTileColumns, out_bytes);
            } else {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            }
            const std::uint16_t* from_left = left.data + row * left.stride;
            const std::uint16_t* from_right = right.data + column / kTileColumns * right.stride;
            for (std::int64_t i = 0; i < inner;
                 i += kTileUnit, from_left += left.inner, from_right += right.inner)
                for (int r = 0; r < kRightParts; ++r) {
                    _tile_loadd(6, from_right + r * right.part, kLineBytes);
                    _tile_loadd(7, from_right + r * right.part + right.stride, kLineBytes);
                    for (int l = 0; l < kLeftParts && l + r <= kMostOrder; ++l) {
                        const std::uint16_t* const part = from_left + l * left.part;
                        _tile_loadd(4, part, left_bytes);
                        _tile_dpbf16ps(0, 4, 6);
                        _tile_dpbf16ps(1, 4, 7);
                        _tile_loadd(5, part + kTileRows * left.stride, left_bytes);
                        _tile_dpbf16ps(2, 5, 6);
                        _tile_dpbf16ps(3, 5, 7);
                    }
                }
            _tile_stored(0, to, out_bytes);
            _tile_stored(1, to + kTileColumns, out_bytes);
            _tile_stored(2, below, out_bytes);
            _tile_stored(3, below + kTileColumns, out_bytes);
            compiler_barrier();
        }
    _tile_release();
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

// The first part is rounded. The second one is not: NaN whose bits round to zero stays NaN there.
FLEXC_AMX void pack_weights(std::int64_t rows, std::int64_t keys, float* weights,
                            std::int64_t stride) {
    constexpr __mmask32 kOdd = 0xaaaaaaaa;
    for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t key = 0; key < keys; key += kTileUnit) {
            float* const at = weights + row * stride + key;
            __m512i high[2], low[2]; // of 16 keys, and of the 16 after them
            for (int i = 0; i < 2; ++i) {
                const __m512 weight = _mm512_loadu_ps(at + i * kTileRows);
                high[i] = _mm512_castps_si512(rounded(weight));
                low[i] = _mm512_castps_si512(_mm512_sub_ps(weight, rounded(weight)));
            }
            _mm512_storeu_si512(
                at, _mm512_mask_blend_epi16(kOdd, _mm512_srli_epi32(high[0], 16), high[1]));
            _mm512_storeu_si512(at + kTileRows, _mm512_mask_blend_epi16(
                                                    kOdd, _mm512_srli_epi32(low[0], 16), low[1]));
        }
}

void multiply_by_keys(const TileProduct& product, const std::uint16_t* queries,
                      const std::uint16_t* keys, float* scores, std::int64_t stride) {
    const std::int64_t dim = product.dim;
    with_load(product.dtype, [&](auto load) {
        constexpr int kParts = decltype(load)::kParts;
        multiply<kParts, kParts>(
            product.rows, product.keys, dim, {queries, query_stride(product.dim), kTileUnit, dim},
            {keys + product.first * dim, kTileColumns * dim, kTileNumbers, product.room * dim},
            scores, stride, false);
    });
}

// The product of both second parts is as small as what weights miss.
void add_weighted_values(const TileProduct& product, const float* weights, std::int64_t stride,
                         const std::uint16_t* values, float* out, bool accumulate) {
    const std::int64_t dim = product.dim;
    with_load(product.dtype, [&](auto load) {
        multiply<kWeightParts, decltype(load)::kParts, 1>(
            product.rows, dim, product.keys,
            {bits(weights), kWeightParts * stride, kWeightParts * kTileUnit, kTileUnit},
            {values + product.first * dim, kTileNumbers, kTileUnit * dim, product.room * dim}, out,
            dim, accumulate);
    });
}

#else

Magnitude pack_queries(DType, const RowList&, int, std::int64_t, std::uint16_t*) { return {}; }
Magnitude pack_keys(DType, const RowList&, int, std::int64_t, std::uint16_t*) { return {}; }
Magnitude pack_values(DType, const RowList&, int, std::int64_t, std::uint16_t*) { return {}; }
void pack_weights(std::int64_t, std::int64_t, float*, std::int64_t) {}
void multiply_by_keys(const TileProduct&, const std::uint16_t*, const std::uint16_t*, float*,
                      std::int64_t) {}
void add_weighted_values(const TileProduct&, const float*, std::int64_t, const std::uint16_t*,
                         float*, bool) {}

#endif

} // namespace flexc::cpu::amx
