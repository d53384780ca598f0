#include "cpu/backend/skinny_amx.h"

#include "cpu/backend/amx.h"
#include "cpu/backend/avx512_bits.h"
#include "flexc/types.h"

#if defined(__x86_64__) && defined(__linux__)

#include <algorithm>
#include <cstring>

namespace flexc::cpu::amx {

namespace {

using avx512::rounded, avx512::transpose, avx512::upper_halves;

// Rows of weights that are one product, each of them two bf16 numbers.
constexpr int kParts = 2, kWeightRows = 4;
// Rows of queries that are one product: a row is a column of a tile.
constexpr int kFewColumns = 4, kMostColumns = kTileColumns;

// The numbers of 16 keys by four rows, as four rows of 16.
FLEXC_AMX_INLINE void transpose_of_four(const float* from, __m512 (&x)[4]) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i of[4]; // four keys each, a quarter for each row
    for (int i = 0; i < 4; ++i)
        of[i] = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(from + 16 * i));
    const __m512i a = _mm512_shuffle_i32x4(of[0], of[1], 0x44);
    const __m512i b = _mm512_shuffle_i32x4(of[2], of[3], 0x44);
    const __m512i c = _mm512_shuffle_i32x4(of[0], of[1], 0xee);
    const __m512i d = _mm512_shuffle_i32x4(of[2], of[3], 0xee);
    x[0] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(a, b, 0x88));
    x[1] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(a, b, 0xdd));
    x[2] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(c, d, 0x88));
    x[3] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(c, d, 0xdd));
}

// Where 16 keys begin, and the bytes from one to the next.
struct TileRows {
    const char* data;
    std::int64_t stride;
};

// The 16 keys from `first` on: as they lie, where they are equally far apart, else copied, with
// zeros after the last one.
FLEXC_AMX_INLINE TileRows rows_from(const RowList& keys, std::int64_t first, std::int64_t bytes,
                                    char* copies) {
    const std::int64_t count = std::min<std::int64_t>(keys.count - first, kTileRows);
    if (count == kTileRows) {
        if (keys.offsets == nullptr) return {keys.at(first), keys.stride};
        const std::int64_t* const offsets = keys.offsets + first;
        const __m512i lanes = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
        const __m512i low =
            _mm512_add_epi64(_mm512_set1_epi64(offsets[0]),
                             _mm512_mullo_epi64(lanes, _mm512_set1_epi64(keys.stride)));
        const __m512i high = _mm512_add_epi64(low, _mm512_set1_epi64(8 * keys.stride));
        if ((_mm512_cmpneq_epi64_mask(_mm512_loadu_si512(offsets), low) |
             _mm512_cmpneq_epi64_mask(_mm512_loadu_si512(offsets + 8), high)) == 0)
            return {keys.data + offsets[0], keys.stride};
    }
    for (std::int64_t i = 0; i < count; ++i)
        std::memcpy(copies + i * bytes, keys.at(first + i), static_cast<std::size_t>(bytes));
    std::fill(copies + count * bytes, copies + kTileRows * bytes, char{0});
    return {copies, bytes};
}

// Prefetches, for each of these rows, the rows kNear and kFar after it: of the latter a line, which
// makes the processor read on.
FLEXC_AMX_INLINE void prefetch(const RowList& rows, std::int64_t first, std::int64_t count,
                               std::int64_t bytes) {
    constexpr std::int64_t kNear = 16, kFar = 64;
    static_assert(kFar + 2 * kTileRows <= RowList::kNext);
    const auto prefetch_one = [&](const char* near, const char* far) FLEXC_AMX
        __attribute__((always_inline)) {
        const char* const end = near + bytes;
        for (; near + 4 * kLineBytes <= end; near += 4 * kLineBytes)
            for (int line = 0; line < 4; ++line)
                _mm_prefetch(near + line * kLineBytes, _MM_HINT_T0);
        for (; near < end; near += kLineBytes)
            _mm_prefetch(near, _MM_HINT_T0);
        _mm_prefetch(far, _MM_HINT_T1);
    };
    if (rows.offsets == nullptr) {
        const char* near = rows.at(first + kNear);
        for (std::int64_t i = 0; i < count; ++i, near += rows.stride)
            prefetch_one(near, near + (kFar - kNear) * rows.stride);
    } else {
        for (std::int64_t row = first; row < first + count; ++row)
            prefetch_one(rows.at(row + kNear), rows.at(row + kFar));
    }
}

// Tiles of the product of keys with queries: sums of two times 16 keys, keys, queries.
// kColumns: rows of queries, of which tiles have one in each column.
template <int kColumns>
FLEXC_AMX void multiply_columns(int rows, int dim, const std::uint16_t* queries,
                                const RowList& keys, float* scores, std::int64_t stride) {
    constexpr std::int64_t kStep = 2 * kTileRows;
    const std::int64_t bytes = std::int64_t{dim} * 2;
    alignas(64) char copies[2][kTileRows * kMaxHeadDim * 2];
    alignas(64) float sums[2][2][kTileRows * kColumns];
    TileConfig config;
    config.set(0, kTileRows, kColumns * 4);
    config.set(1, kTileRows, kColumns * 4);
    config.set(2, kTileRows, kLineBytes);
    config.set(3, kTileRows, kLineBytes);
    config.set(4, kTileRows, kColumns * 4);
    load_config(config);
    // Writes the scores of two times 16 keys.
    const auto write = [&](std::int64_t first) FLEXC_AMX __attribute__((always_inline)) {
        const float(*const of_keys)[kTileRows * kColumns] = sums[first / kStep % 2];
        for (int half = 0; half < 2; ++half) {
            const std::int64_t at = first + half * kTileRows;
            const std::int64_t count = std::min<std::int64_t>(keys.count - at, kTileRows);
            if (count <= 0) break;
            const auto mask = static_cast<__mmask16>((1u << count) - 1);
            if constexpr (kColumns == kFewColumns) {
                __m512 of[4];
                transpose_of_four(of_keys[half], of);
                for (int row = 0; row < rows; ++row)
                    _mm512_mask_storeu_ps(scores + row * stride + at, mask, of[row]);
            } else {
                __m512i of[16];
                for (int i = 0; i < 16; ++i)
                    of[i] = _mm512_load_si512(of_keys[half] + i * 16);
                transpose(of);
                for (int row = 0; row < rows; ++row)
                    _mm512_mask_storeu_epi32(scores + row * stride + at, mask, of[row]);
            }
        }
    };
    for (std::int64_t first = 0; first < keys.count; first += kStep) {
        const TileRows one = rows_from(keys, first, bytes, copies[0]);
        const TileRows two = first + kTileRows < keys.count
                                 ? rows_from(keys, first + kTileRows, bytes, copies[1])
                                 : one;
        compiler_barrier();
        _tile_zero(0);
        _tile_zero(1);
        const std::uint16_t* of_queries = queries;
        std::int64_t row = first;
        const std::int64_t rows_each = kStep * kPairs / dim; // that are prefetched
        for (std::int64_t d = 0; d < dim; d += kPairs, of_queries += kPairs * kColumns) {
            _tile_loadd(4, of_queries, kColumns * 4);
            _tile_loadd(2, one.data + d * 2, one.stride);
            _tile_dpbf16ps(0, 2, 4);
            _tile_loadd(3, two.data + d * 2, two.stride);
            _tile_dpbf16ps(1, 3, 4);
            prefetch(keys, row, rows_each, bytes);
            row += rows_each;
        }
        float(*const of_keys)[kTileRows * kColumns] = sums[first / kStep % 2];
        _tile_stored(0, of_keys[0], kColumns * 4);
        _tile_stored(1, of_keys[1], kColumns * 4);
        // One step later, when they are stored.
        if (first > 0) write(first - kStep);
    }
    write((keys.count - 1) / kStep * kStep);
    _tile_release();
}

// Two bf16 numbers of each of 16 keys' weights, whose sum it is but for its last bits, as rows of a
// tile. Rows of values are pairs of dims: the first half of the tile is for the first ones of
// pairs, with zeros for the others, and the second half the reverse.
FLEXC_AMX_INLINE void pack_weights(int rows, const float* weights, std::int64_t stride,
                                   __mmask16 mask, std::uint32_t* packed) {
    for (int row = 0; row < rows; ++row) {
        __m512 rest = _mm512_maskz_loadu_ps(mask, weights + row * stride);
        for (int part = 0; part < kParts; ++part) {
            const __m512 number = rounded(rest);
            rest = _mm512_sub_ps(rest, number);
            const __m512i bits = _mm512_castps_si512(number);
            std::uint32_t* const to = packed + (part * rows + row) * kTileColumns;
            _mm512_store_si512(to, _mm512_srli_epi32(bits, 16));
            _mm512_store_si512(to + kParts * rows * kTileColumns, bits);
        }
    }
}

// Adds such a product, whose columns are pairs of dims, to 32 dims of each row.
FLEXC_AMX_INLINE void add_sums(int rows, std::int64_t dim, const float* sums, float* out) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(kTileColumns / 2));
    for (int row = 0; row < rows; ++row) {
        const auto sum_of = [&](int dim_of_pair) FLEXC_AMX __attribute__((always_inline)) {
            const float* const first = sums + (dim_of_pair * kParts * rows + row) * kTileColumns;
            return _mm512_add_ps(_mm512_load_ps(first + rows * kTileColumns),
                                 _mm512_load_ps(first));
        };
        const __m512 a = sum_of(0), b = sum_of(1);
        float* const to = out + row * dim;
        _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), _mm512_permutex2var_ps(a, low, b)));
        _mm512_storeu_ps(
            to + 16, _mm512_add_ps(_mm512_loadu_ps(to + 16), _mm512_permutex2var_ps(a, high, b)));
    }
}

// kTiles times 32 dims from `d` on, of up to kWeightRows rows. Tiles: up to four of sums, one of
// weights, two of values.
template <int kTiles>
FLEXC_AMX void add_dims(int rows, std::int64_t dim, std::int64_t d, const float* weights,
                        std::int64_t stride, const RowList& values, float* out) {
    static_assert(kTiles >= 1 && kTiles <= 4);
    alignas(64) char copies[kTileRows * kMaxHeadDim * 2];
    alignas(64) std::uint32_t packed[2][kTileRows * kTileColumns];
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (std::int64_t first = 0; first < values.count; first += kTileRows) {
        const std::int64_t left = std::min<std::int64_t>(values.count - first, kTileRows);
        std::uint32_t* const of_keys = packed[first / kTileRows % 2];
        pack_weights(rows, weights + first, stride, static_cast<__mmask16>((1u << left) - 1),
                     of_keys);
        const TileRows tile = rows_from(values, first, dim * 2, copies);
        const char* const data = tile.data + d * 2;
        compiler_barrier();
        const auto prefetch_some = [&](int part) FLEXC_AMX __attribute__((always_inline)) {
            const std::int64_t begin = part * kTileRows / kTiles;
            const std::int64_t end = (part + 1) * kTileRows / kTiles;
            if (d == 0) prefetch(values, first + begin, end - begin, dim * 2);
        };
        _tile_loadd(4, of_keys, kLineBytes);
        _tile_loadd(5, data, tile.stride);
        _tile_dpbf16ps(0, 4, 5);
        prefetch_some(0);
        if constexpr (kTiles > 1) {
            _tile_loadd(6, data + kLineBytes, tile.stride);
            _tile_dpbf16ps(1, 4, 6);
            prefetch_some(1);
        }
        if constexpr (kTiles > 2) {
            _tile_loadd(5, data + 2 * kLineBytes, tile.stride);
            _tile_dpbf16ps(2, 4, 5);
            prefetch_some(2);
        }
        if constexpr (kTiles > 3) {
            _tile_loadd(6, data + 3 * kLineBytes, tile.stride);
            _tile_dpbf16ps(3, 4, 6);
            prefetch_some(3);
        }
        compiler_barrier();
    }
    alignas(64) float sums[4][kTileRows * kTileColumns];
    _tile_stored(0, sums[0], kLineBytes);
    _tile_stored(1, sums[1], kLineBytes);
    _tile_stored(2, sums[2], kLineBytes);
    _tile_stored(3, sums[3], kLineBytes);
    for (int tile = 0; tile < kTiles; ++tile)
        add_sums(rows, dim, sums[tile], out + d + tile * kPairs);
}

FLEXC_AMX void add_rows(int rows, int dim, const float* weights, std::int64_t stride,
                        const RowList& values, float* out) {
    TileConfig config;
    for (int tile = 0; tile <= 4; ++tile)
        config.set(tile, 2 * kParts * rows, kLineBytes);
    config.set(5, kTileRows, kLineBytes);
    config.set(6, kTileRows, kLineBytes);
    load_config(config);
    for (int d = 0; d < dim; d += 4 * kPairs)
        switch ((dim - d) / kPairs) {
        case 1: add_dims<1>(rows, dim, d, weights, stride, values, out); break;
        case 2: add_dims<2>(rows, dim, d, weights, stride, values, out); break;
        case 3: add_dims<3>(rows, dim, d, weights, stride, values, out); break;
        default: add_dims<4>(rows, dim, d, weights, stride, values, out);
        }
    _tile_release();
}

template <int kColumns>
FLEXC_AMX void pack_columns(int rows, int dim, const float* queries, std::uint16_t* packed) {
    for (int d = 0; d < dim; d += kPairs, packed += kPairs * kColumns) {
        __m512i of[16];
        for (int row = 0; row < 16; ++row) {
            const float* const from = queries + std::int64_t{row} * dim + d;
            of[row] = row < rows ? upper_halves(_mm512_loadu_ps(from), _mm512_loadu_ps(from + 16))
                                 : _mm512_setzero_si512();
        }
        transpose(of);
        for (int pair = 0; pair < 16; ++pair)
            if constexpr (kColumns == kFewColumns)
                _mm_storeu_si128(reinterpret_cast<__m128i*>(packed + pair * 2 * kColumns),
                                 _mm512_castsi512_si128(of[pair]));
            else
                _mm512_storeu_si512(packed + pair * 2 * kColumns, of[pair]);
    }
}

} // namespace

void pack_queries(int rows, int dim, const float* queries, std::uint16_t* packed) {
    if (rows <= kFewColumns)
        pack_columns<kFewColumns>(rows, dim, queries, packed);
    else
        for (int row = 0; row < rows; row += kMostColumns)
            pack_columns<kMostColumns>(std::min(rows - row, kMostColumns), dim,
                                       queries + std::int64_t{row} * dim,
                                       packed + std::int64_t{row} * dim);
}

void multiply_by_keys(int rows, int dim, const std::uint16_t* queries, const RowList& keys,
                      float* scores, std::int64_t stride) {
    if (rows <= kFewColumns)
        multiply_columns<kFewColumns>(rows, dim, queries, keys, scores, stride);
    else
        for (int row = 0; row < rows; row += kMostColumns)
            multiply_columns<kMostColumns>(std::min(rows - row, kMostColumns), dim,
                                           queries + std::int64_t{row} * dim, keys,
                                           scores + row * stride, stride);
}

void add_weighted_values(int rows, int dim, const float* weights, std::int64_t stride,
                         const RowList& values, float* out) {
    for (int row = 0; row < rows; row += kWeightRows)
        add_rows(std::min(rows - row, kWeightRows), dim, weights + row * stride, stride, values,
                 out + std::int64_t{row} * dim);
}

} // namespace flexc::cpu::amx

#else

namespace flexc::cpu::amx {

void pack_queries(int, int, const float*, std::uint16_t*) {}
void multiply_by_keys(int, int, const std::uint16_t*, const RowList&, float*, std::int64_t) {}
void add_weighted_values(int, int, const float*, std::int64_t, const RowList&, float*) {}

} // namespace flexc::cpu::amx

#endif
