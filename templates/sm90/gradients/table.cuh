// Gradients of reads of tables whose indices are sums of a number of the query and one of the key,
// where a table is small or a tile meets a small part of it. Two warps of the producer's warpgroup
// add a tile of dS to copies of that part in shared memory, each warp to its own, and what is not
// zero there to memory once a tile.
//
// Shared memory adds whole numbers in one instruction, floats in a loop of several. So a tile's
// elements are multiplied by a power of two that makes the largest of them a number of 19 bits:
// sums of all of a warp's elements have room, and nothing is lost that 16 bits of dS had beside the
// largest. Where a part takes less than the memory there is, each of up to 32 lanes has a copy of
// its own, so that lanes with the same entry do not wait for each other.
#pragma once

#include "sm90/backward_tiles.cuh"
#include "sm90/gradients/sum.cuh"

namespace sm90 {

// Bits of the largest element, and of the lowest exponent whose inverse scale is a float.
constexpr int kFixedBits = 19, kLeastExponent = kFixedBits + 1;

// From floats to numbers of kFixedBits and back.
struct FixedPoint {
    float scale, inverse;

    // largest: of what will be converted, above 0.
    explicit __device__ FixedPoint(float largest) {
        const int exponent = max(__float_as_int(largest) >> 23, kLeastExponent);
        scale = __int_as_float((254 + kFixedBits - 1 - exponent) << 23);
        inverse = __int_as_float((exponent - kFixedBits + 1) << 23);
    }
    // Rounded by an addition, which is faster than a conversion.
    __device__ int operator()(float x) const {
        constexpr float kRounder = 0x1.8p23F;
        return __float_as_int(fmaf(x, scale, kRounder)) - __float_as_int(kRounder);
    }
};

// What one warp sums of a tile of dS: 64 keys, of which each lane has two neighbours, and all of
// the tile's queries, or half of them where there are no more keys.
struct TableTile {
    static constexpr int kRows = kSharesKeys ? mod::kQueryTile / 2 : mod::kQueryTile;
    static constexpr int kLaneRows = (kRows + 31) / 32;
    // As many loads are on their way at once.
    static constexpr int kRowsAtOnce = kSparesRegisters ? 8 : 4;
    static_assert(!mod::kSumsTables || kRows % 32 == 0);

    const KernelArguments& attention;
    const mod::Arguments& arguments;
    const HeadPlace& place;
    unsigned d_scores; // the warp's panel, from its first row on
    unsigned table;    // the warp's memory
    int first_query, first_key;

    __device__ TableTile(const KernelArguments& attention, const mod::Arguments& arguments,
                         const HeadPlace& place, Shared shared, int stage, int tile_query,
                         int tile_key, int warp)
        : attention(attention), arguments(arguments), place(place),
          d_scores(shared.base + kLayout.d_scores + stage * kDScoresBytes +
                   warp * (kSharesKeys ? kRows * kRowBytes : kQueryPanel)),
          table(shared.base + kLayout.tables + warp * 4 * mod::kTableWords),
          first_query(tile_query + (kSharesKeys ? warp * kRows : 0)),
          first_key(tile_key + (kSharesKeys ? 0 : warp * kPanelColumns)) {}

    static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
    static __device__ int key_of(int side) { return 2 * lane() + side; }

    // visit(first, i, word) for row first + i, kAtOnce of them written out: the lane's two keys.
    template <int kAtOnce, typename Visit> __device__ void visit_rows(Visit visit) const {
        const unsigned from = d_scores + lane() % 4 * 4, chunk = lane() / 4 * 16;
#pragma unroll 1
        for (int first = 0; first < kRows; first += kAtOnce) {
            unsigned words[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const unsigned swizzled = chunk ^ ((kAtOnce == 8   ? i
                                                    : kAtOnce == 4 ? first % 8 | i
                                                                   : (first + i) % 8) *
                                                   16);
                words[i] = load_shared_word(from + (first + i) * kRowBytes + swizzled);
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
                visit(first, i, words[i]);
        }
    }

    // The largest size of an element, or what is not finite.
    __device__ float largest() const {
        unsigned most = 0;
        visit_rows<TableTile::kRowsAtOnce>(
            [&](int, int, unsigned word) { most = largest_of_halves(most, word & 0x7fff7fffu); });
        most = max(most & 0xffffu, most >> 16);
        return flexc_first(mod::Element{}, __reduce_max_sync(0xffffffffu, most));
    }

    // The program's element at a query and a key of the tile, or at the tensors' last ones.
    template <typename Visit> __device__ auto visit(int row, int key, Visit visit_at) const {
        return visit_element(attention, arguments, place,
                             min(first_query + row, attention.q_len - 1),
                             min(first_key + key, attention.kv_len - 1), visit_at);
    }
};

// One read's gradient in one tile. Each of its indices is a number of the query plus one of the
// key, so that these are found once for a row and for a key.
template <int kTable> class TableSum {
    using Read = mod::TableGradient<kTable>;
    static constexpr int kDims = Read::kDims, kLaneRows = TableTile::kLaneRows;
    static constexpr unsigned kAll = 0xffffffffu;
    struct Index {
        int of[kDims];
    };

  public:
    __device__ TableSum(const TableTile& tile, FixedPoint fixed) : tile_(tile), fixed_(fixed) {
        tile.visit(0, 0, [&](const mod::At& at) {
            Read::extents(at, extents_.of);
            Read::strides(at, strides_);
            slice_ = Read::slice(at);
        });
    }

    // is_finite: all of dS.
    __device__ void add(bool is_finite) {
        if (slice_ == nullptr) return;
        Index rows[kLaneRows], keys[2]; // of the lane's queries, and what its keys add to these
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i)
            rows[i] = index_at(32 * i + TableTile::lane(), 0);
#pragma unroll
        for (int side = 0; side < 2; ++side)
            keys[side] = index_at(0, TableTile::key_of(side));
#pragma unroll
        for (int d = 0; d < kDims; ++d) {
            const int origin = uniform(rows[0].of[d]);
            keys[0].of[d] -= origin;
            keys[1].of[d] -= origin;
        }
        if (!is_finite || !are_inside(rows, keys) || !add_places(rows, keys)) add_each(rows, keys);
    }

  private:
    // At a query and a key of the tile.
    __device__ Index index_at(int row, int key) const {
        Index index;
        tile_.visit(row, key, [&](const mod::At& at) { Read::indices(at, index.of); });
        return index;
    }
    // Entries in the order of the dims, the last one's together.
    __device__ int place_of(const Index& index) const {
        int place = index.of[0];
#pragma unroll
        for (int d = 1; d < kDims; ++d)
            place = place * extents_.of[d] + index.of[d];
        return place;
    }
    __device__ float* address(const Index& index) const {
        float* to = slice_;
#pragma unroll
        for (int d = 0; d < kDims; ++d)
            to += index.of[d] * strides_[d];
        return to;
    }
    __device__ Index index_of(int place) const {
        Index index;
#pragma unroll
        for (int d = kDims - 1; d > 0; --d) {
            const int rest = place / extents_.of[d];
            index.of[d] = place - rest * extents_.of[d];
            place = rest;
        }
        index.of[0] = place;
        return index;
    }

    // Of all the warp's queries, or keys.
    template <int kCount> static __device__ int least_of(const int (&of)[kCount]) {
        int least = of[0];
#pragma unroll
        for (int i = 1; i < kCount; ++i)
            least = min(least, of[i]);
        return __reduce_min_sync(kAll, least);
    }
    template <int kCount> static __device__ int most_of(const int (&of)[kCount]) {
        int most = of[0];
#pragma unroll
        for (int i = 1; i < kCount; ++i)
            most = max(most, of[i]);
        return __reduce_max_sync(kAll, most);
    }

    // Whether no element's index is outside of the buffer.
    __device__ bool are_inside(const Index (&rows)[kLaneRows], const Index (&keys)[2]) const {
        bool inside = true;
#pragma unroll
        for (int d = 0; d < kDims; ++d) {
            int of_rows[kLaneRows], of_keys[2] = {keys[0].of[d], keys[1].of[d]};
#pragma unroll
            for (int i = 0; i < kLaneRows; ++i)
                of_rows[i] = rows[i].of[d];
            const long long low = static_cast<long long>(least_of(of_rows)) + least_of(of_keys);
            const long long high = static_cast<long long>(most_of(of_rows)) + most_of(of_keys);
            inside = inside && low >= 0 && high < extents_.of[d];
        }
        return inside;
    }

    // In shared memory, where the tile meets few entries: false elsewhere.
    __device__ bool add_places(const Index (&rows)[kLaneRows], const Index (&keys)[2]) {
        long long entries = 1;
#pragma unroll
        for (int d = 0; d < kDims; ++d)
            entries = min(entries * extents_.of[d], 1ll << 32);
        if (entries > 0x7fffffff) return false;
        int row_places[kLaneRows], key_places[2] = {place_of(keys[0]), place_of(keys[1])};
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i)
            row_places[i] = place_of(rows[i]);
        const int first = least_of(row_places) + least_of(key_places);
        const int last = most_of(row_places) + most_of(key_places);
        const int count = last - first + 1;
        if (count <= 0 || count > mod::kTableWords) return false;
        const int shift = min(5, 31 - __clz(mod::kTableWords / count)); // of the number of copies
        // Addresses are sums of one part of the row and one of the key.
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i)
            row_places[i] = (row_places[i] - first) << (shift + 2);
        const unsigned copy = tile_.table + 4 * (TableTile::lane() & ((1 << shift) - 1));
        const unsigned to[2] = {copy + (key_places[0] << (shift + 2)),
                                copy + (key_places[1] << (shift + 2))};
        tile_.visit_rows<TableTile::kRowsAtOnce>([&](int first_row, int i, unsigned pair) {
            const int row =
                kLaneRows == 1 || first_row < 32 ? row_places[0] : row_places[kLaneRows - 1];
            const unsigned from = __shfl_sync(kAll, row, first_row % 32 + i);
            add_shared(from + to[0], fixed_(flexc_first(mod::Element{}, pair)));
            add_shared(from + to[1], fixed_(flexc_second(mod::Element{}, pair)));
        });
        flush(first, count, shift);
        return true;
    }

    // One by one, with the buffer's ends.
    __device__ void add_each(const Index (&rows)[kLaneRows], const Index (&keys)[2]) const {
        tile_.visit_rows<1>([&](int row, int, unsigned pair) {
            const float of[2] = {flexc_first(mod::Element{}, pair),
                                 flexc_second(mod::Element{}, pair)};
            Index index[2];
            bool inside[2] = {of[0] != 0, of[1] != 0};
#pragma unroll
            for (int d = 0; d < kDims; ++d) {
                const int mine =
                    kLaneRows == 1 || row < 32 ? rows[0].of[d] : rows[kLaneRows - 1].of[d];
                const int of_row = __shfl_sync(kAll, mine, row % 32);
#pragma unroll
                for (int side = 0; side < 2; ++side) {
                    index[side].of[d] = of_row + keys[side].of[d];
                    inside[side] = inside[side] && flexc_inside(index[side].of[d], extents_.of[d]);
                }
            }
#pragma unroll
            for (int side = 0; side < 2; ++side)
                if (inside[side]) add_float(address(index[side]), of[side] * Read::kFactor);
        });
    }

    // Sums go to memory, and zeros are left.
    __device__ void flush(int first, int count, int shift) const {
        __syncwarp();
#pragma unroll 1
        for (int entry = TableTile::lane(); entry < count; entry += 32) {
            const int sum = take(entry, shift);
            if (sum != 0)
                add_float(address(index_of(first + entry)),
                          static_cast<float>(sum) * fixed_.inverse * Read::kFactor);
        }
        __syncwarp();
    }

    // All copies of an entry, which become zeros: four of them at once, where there are so many.
    __device__ int take(int entry, int shift) const {
        const unsigned from = tile_.table + 4 * (entry << shift);
        int sum = 0;
        if (shift < 2) {
#pragma unroll 1
            for (int copy = 0; copy < 1 << shift; ++copy) {
                sum += static_cast<int>(load_shared_word(from + 4 * copy));
                store_shared_word(from + 4 * copy, 0);
            }
            return sum;
        }
        const int fours = 1 << (shift - 2);
#pragma unroll 2
        for (int four = 0; four < fours; ++four) {
            // Lanes begin with different ones, which are in different banks.
            const unsigned at = from + 16 * ((four + TableTile::lane()) & (fours - 1));
            int of[4];
            load_shared(at, of[0], of[1], of[2], of[3]);
            store_shared(at, 0, 0, 0, 0);
            sum += of[0] + of[1] + (of[2] + of[3]);
        }
        return sum;
    }

    const TableTile& tile_;
    const FixedPoint fixed_;
    Index extents_;
    long long strides_[kDims];
    float* slice_; // of the head; null where that is outside of the buffer
};

template <int kTable = 0> __device__ inline void add_tables(const TableTile& tile, float largest) {
    if constexpr (kTable < mod::kTableGradients) {
        TableSum<kTable>(tile, FixedPoint(largest)).add(largest <= kMostFinite);
        add_tables<kTable + 1>(tile, largest);
    }
}

// By one warp, for all of the block's tiles.
__device__ inline void sum_tables(const KernelArguments& attention, const mod::Arguments& arguments,
                                  Shared shared, const KeyTile& keys, int warp) {
    const unsigned memory = shared.base + kLayout.tables + warp * 4 * mod::kTableWords;
    for (int i = TableTile::lane(); i < mod::kTableWords; i += 32)
        store_shared_word(memory + 4 * i, 0);
    int stage = 0;
    visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
#pragma unroll 1
        for (QueryTiles walk(attention, place, keys, tiles); !walk.is_done();
             walk.advance(), stage ^= 1) {
            __syncwarp();
            meet_at_d_scores();
            const TableTile tile(attention, arguments, place, shared, stage,
                                 walk.tile() * mod::kQueryTile, keys.first_kv, warp);
            const float largest = tile.largest();
            if (largest != 0) add_tables(tile, largest);
        }
    });
}

} // namespace sm90
