// Gradients of reads of tables by any index, where a table is small or a tile meets a small part of
// it. Two warps of the producer's warpgroup add a tile of dS to copies of that part in shared
// memory, each warp to its own, and what is not zero there to memory once a tile.
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

__device__ inline void add_shared(unsigned to, int x) {
    asm volatile("red.shared.add.s32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ inline unsigned largest_of_halves(unsigned x, unsigned y) {
    unsigned largest;
    asm("max.u16x2 %0, %1, %2;" : "=r"(largest) : "r"(x), "r"(y));
    return largest;
}

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
                const unsigned swizzled = chunk ^ ((kAtOnce == 8 ? i : (first + i) % 8) * 16);
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
        visit_rows<8>(
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

// One read's gradient in one tile.
template <int kTable> class TableSum {
    using Read = mod::TableGradient<kTable>;
    static constexpr int kDims = Read::kDims;
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

    __device__ void add() {
        if (slice_ == nullptr) return;
        if constexpr (Read::kIsSeparable)
            if (add_separable()) return;
        long long count = 1;
#pragma unroll
        for (int d = 0; d < kDims; ++d)
            count *= extents_.of[d];
        if (count <= mod::kTableWords) {
            const int shift = use(0, static_cast<int>(count));
            visit_elements([&](const Index& index, float x) {
                add_shared(word(place_of(index), shift), fixed_(x));
            });
            flush(shift);
        } else {
            add_each();
        }
    }
    // Where there are too many entries, or dS is not finite.
    __device__ void add_each() const {
        visit_elements([&](const Index& index, float x) { add_float(address(index), x); });
    }

  private:
    // At a query and a key of the tile.
    __device__ Index index_at(int row, int key) const {
        Index index;
        tile_.visit(row, key, [&](const mod::At& at) { Read::indices(at, index.of); });
        return index;
    }
    __device__ bool has(const Index& index) const {
        bool inside = true;
#pragma unroll
        for (int d = 0; d < kDims; ++d)
            inside = inside && flexc_inside(index.of[d], extents_.of[d]);
        return inside;
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

    // visit(index, dS) for what is not zero and in the buffer.
    template <typename Visit> __device__ void visit_elements(Visit visit) const {
        tile_.visit_rows<1>([&](int first, int i, unsigned word) {
            const float of[2] = {flexc_first(mod::Element{}, word),
                                 flexc_second(mod::Element{}, word)};
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                if (of[side] == 0) continue;
                const Index index = index_at(first + i, TableTile::key_of(side));
                if (has(index)) visit(index, of[side]);
            }
        });
    }

    // The memory is for entries from `first` on. How many copies there are, as a power of two.
    __device__ int use(int first, int count) {
        first_ = first;
        count_ = count;
        return min(5, 31 - __clz(mod::kTableWords / count));
    }
    __device__ unsigned word(int place, int shift) const {
        return tile_.table +
               4 * (((place - first_) << shift) + (TableTile::lane() & ((1 << shift) - 1)));
    }

    // Where each index is a number of the query plus one of the key, and all of a tile's are in the
    // buffer and meet few entries: false elsewhere.
    __device__ bool add_separable() {
        Index rows[TableTile::kLaneRows], keys[2];
#pragma unroll
        for (int i = 0; i < TableTile::kLaneRows; ++i)
            rows[i] = index_at(32 * i + TableTile::lane(), 0);
#pragma unroll
        for (int side = 0; side < 2; ++side)
            keys[side] = index_at(0, TableTile::key_of(side));
        // Beyond half of the range of integers, sums would say nothing.
        constexpr int kFar = 1 << 29;
        bool inside = true;
        int least = 0, most = 0; // places
#pragma unroll
        for (int d = 0; d < kDims; ++d) {
            const int origin = uniform(rows[0].of[d]);
            int low = rows[0].of[d], high = low;
#pragma unroll
            for (int i = 1; i < TableTile::kLaneRows; ++i) {
                low = min(low, rows[i].of[d]);
                high = max(high, rows[i].of[d]);
            }
            low = __reduce_min_sync(kAll, low);
            high = __reduce_max_sync(kAll, high);
            int key_low = min(keys[0].of[d], keys[1].of[d]);
            int key_high = max(keys[0].of[d], keys[1].of[d]);
            key_low = __reduce_min_sync(kAll, key_low);
            key_high = __reduce_max_sync(kAll, key_high);
            inside = inside && -kFar < low && high < kFar && -kFar < key_low && key_high < kFar &&
                     -kFar < origin && low + (key_low - origin) >= 0 &&
                     high + (key_high - origin) < extents_.of[d];
            keys[0].of[d] -= origin;
            keys[1].of[d] -= origin;
        }
        if (!inside) return false;
        int row_places[TableTile::kLaneRows],
            key_places[2] = {place_of(keys[0]), place_of(keys[1])};
#pragma unroll
        for (int i = 0; i < TableTile::kLaneRows; ++i) {
            row_places[i] = place_of(rows[i]);
            least = i == 0 ? row_places[i] : min(least, row_places[i]);
            most = i == 0 ? row_places[i] : max(most, row_places[i]);
        }
        least = __reduce_min_sync(kAll, least) +
                __reduce_min_sync(kAll, min(key_places[0], key_places[1]));
        most = __reduce_max_sync(kAll, most) +
               __reduce_max_sync(kAll, max(key_places[0], key_places[1]));
        const long long count = static_cast<long long>(most) - least + 1;
        if (count > mod::kTableWords) return false;
        const int shift = use(least, static_cast<int>(count));
        // Addresses are sums of one part of the row and one of the key.
#pragma unroll
        for (int i = 0; i < TableTile::kLaneRows; ++i)
            row_places[i] <<= shift + 2;
        const unsigned to[2] = {word(key_places[0], shift), word(key_places[1], shift)};
        tile_.visit_rows<8>([&](int first, int i, unsigned pair) {
            const int row = TableTile::kLaneRows == 1 || first < 32
                                ? row_places[0]
                                : row_places[TableTile::kLaneRows - 1];
            const unsigned from = __shfl_sync(kAll, row, first % 32 + i);
            add_shared(from + to[0], fixed_(flexc_first(mod::Element{}, pair)));
            add_shared(from + to[1], fixed_(flexc_second(mod::Element{}, pair)));
        });
        flush(shift);
        return true;
    }

    // Sums go to memory, and zeros are left.
    __device__ void flush(int shift) const {
        __syncwarp();
#pragma unroll 1
        for (int entry = TableTile::lane(); entry < count_; entry += 32) {
            const int sum = take(entry, shift);
            if (sum != 0)
                add_float(address(index_of(first_ + entry)),
                          static_cast<float>(sum) * fixed_.inverse);
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
    int first_ = 0, count_ = 0;
};

template <int kTable = 0> __device__ inline void add_tables(const TableTile& tile, float largest) {
    if constexpr (kTable < mod::kTableGradients) {
        TableSum<kTable> sum(tile, FixedPoint(largest));
        if (largest <= kMostFinite)
            sum.add();
        else
            sum.add_each();
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
