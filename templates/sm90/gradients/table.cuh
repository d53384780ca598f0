// Gradients of reads of tables that are small, or of which a tile meets a small part, whatever
// their indices are. Two warps of the producer's warpgroup add a tile of dS to copies of that part
// in shared memory, each warp to its own, and what is not zero there to memory once a tile.
//
// Shared memory adds whole numbers in one instruction, floats in a loop of several. So a tile's
// elements are multiplied by a power of two that makes the largest of them a number of 19 bits:
// sums of all of a warp's elements have room, and nothing is lost that 16 bits of dS had beside the
// largest. Where a part takes less than the memory there is, each of up to 32 lanes has a copy of
// its own, so that lanes with the same entry do not wait for each other.
#pragma once

#include "sm90/gradients/sum.cuh"
#include "sm90/gradients/warp_panel.cuh"

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

// A warp's panel, of which each lane has two neighbouring keys.
struct TableTile : WarpPanel {
    static constexpr int kLaneRows = (kRows + 31) / 32;
    // As many loads are on their way at once.
    static constexpr int kRowsAtOnce = kSparesRegisters ? 8 : 4;
    static_assert(!mod::kSumsTables || kRows % 32 == 0);

    const KernelArguments& attention;
    const mod::Arguments& arguments;
    const HeadPlace& place;
    unsigned table; // the warp's memory

    __device__ TableTile(const KernelArguments& attention, const mod::Arguments& arguments,
                         const HeadPlace& place, const WarpPanel& panel, unsigned memory)
        : WarpPanel(panel), attention(attention), arguments(arguments), place(place),
          table(memory) {}

    static __device__ int key_of(int side) { return 2 * lane() + side; }

    // visit(first, words) for rows first ... first + kAtOnce - 1: the lane's two keys of each.
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
            visit(first, words);
        }
    }

    // The largest size of an element, or what is not finite.
    __device__ float largest() const {
        unsigned most = 0;
        visit_rows<kRowsAtOnce>([&](int, const unsigned(&words)[kRowsAtOnce]) {
#pragma unroll
            for (const unsigned word : words)
                most = largest_of_halves(most, word & 0x7fff7fffu);
        });
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

// Where the entries of a table are: in the order of the dims, the last one's together.
template <int kTable> class TableEntries {
    using Read = mod::TableGradient<kTable>;

  public:
    static constexpr int kDims = Read::kDims;
    struct Index {
        int of[kDims];
    };

    explicit __device__ TableEntries(const TableTile& tile) {
        tile.visit(0, 0, [&](const mod::At& at) {
            Read::extents(at, extents_.of);
            Read::strides(at, strides_);
            slice_ = Read::slice(at);
            factor_ = Read::factor(at);
        });
    }

    // Whether the head's slice is inside of the buffer.
    __device__ bool exist() const { return slice_ != nullptr; }
    __device__ int extent(int dim) const { return extents_.of[dim]; }
    // 0: more than there are places.
    __device__ int count() const {
        long long entries = 1;
#pragma unroll
        for (int d = 0; d < kDims; ++d)
            entries = min(entries * extents_.of[d], 1ll << 32);
        return entries > 0x7fffffff ? 0 : static_cast<int>(entries);
    }
    __device__ int place_of(const Index& index) const {
        int place = index.of[0];
#pragma unroll
        for (int d = 1; d < kDims; ++d)
            place = place * extents_.of[d] + index.of[d];
        return place;
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
    // In memory.
    __device__ void add(const Index& index, float d_score) const {
        float* to = slice_;
#pragma unroll
        for (int d = 0; d < kDims; ++d)
            to += index.of[d] * strides_[d];
        add_float(to, d_score * factor_);
    }

  private:
    Index extents_;
    long long strides_[kDims];
    float* slice_;
    float factor_; // of dS
};

// A warp's sums of some entries in shared memory, which are zeros between tiles.
class TableCopies {
  public:
    // Of `count` entries, up to kTableWords; 0 for none.
    __device__ TableCopies(unsigned memory, int first, int count)
        : memory_(memory), first_(first), count_(count),
          shift_(count == 0 ? 0 : min(5, 31 - __clz(mod::kTableWords / count))) {}
    // Of entries least ... most with some beside them, or of the middle of these; total: of a
    // table.
    static __device__ TableCopies around(unsigned memory, int least, int most, int total) {
        const int range = most - least + 1;
        int count = mod::kTableWords;
        while (count > 32 && count / 2 >= range + range / 8)
            count /= 2;
        const int first = max(0, min(least - (count - range) / 2, total - count));
        return {memory, first, min(count, total - first)};
    }

    __device__ int first() const { return first_; }
    __device__ bool hold(int place) const {
        return static_cast<unsigned>(place - first_) < static_cast<unsigned>(count_);
    }
    // Of the lane's own copy, or of one that few lanes share.
    __device__ unsigned address(int place) const {
        const unsigned copy = memory_ + 4 * (TableTile::lane() & ((1 << shift_) - 1));
        return copy + step(place - first_);
    }
    // From one entry's address to another's.
    __device__ unsigned step(int places) const { return places << (shift_ + 2); }

    // Sums go to memory, and zeros are left.
    template <typename Entries> __device__ void flush(const Entries& entries, FixedPoint fixed) {
        __syncwarp();
#pragma unroll 1
        for (int entry = TableTile::lane(); entry < count_; entry += 32) {
            const int sum = take(entry);
            if (sum != 0)
                entries.add(entries.index_of(first_ + entry),
                            static_cast<float>(sum) * fixed.inverse);
        }
        __syncwarp();
    }

  private:
    // All copies of an entry, which become zeros: four of them at once, where there are so many.
    __device__ int take(int entry) const {
        const unsigned from = memory_ + step(entry);
        int sum = 0;
        if (shift_ < 2) {
#pragma unroll 1
            for (int copy = 0; copy < 1 << shift_; ++copy) {
                sum += static_cast<int>(load_shared_word(from + 4 * copy));
                store_shared_word(from + 4 * copy, 0);
            }
            return sum;
        }
        const int fours = 1 << (shift_ - 2);
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

    unsigned memory_;
    int first_, count_;
    int shift_; // of the number of copies
};

// One read's gradient in one tile, where each index is a number of the query plus one of the key:
// both are found once for a row and for a key.
template <int kTable> class SeparableTableSum {
    using Read = mod::TableGradient<kTable>;
    using Entries = TableEntries<kTable>;
    using Index = typename Entries::Index;
    static constexpr int kDims = Entries::kDims, kLaneRows = TableTile::kLaneRows;
    static constexpr int kAtOnce = TableTile::kRowsAtOnce;
    static constexpr unsigned kAll = 0xffffffffu;

  public:
    __device__ SeparableTableSum(const TableTile& tile, FixedPoint fixed)
        : tile_(tile), fixed_(fixed), entries_(tile) {}

    // is_finite: all of dS.
    __device__ void add(bool is_finite) {
        if (!entries_.exist()) return;
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
            inside = inside && low >= 0 && high < entries_.extent(d);
        }
        return inside;
    }

    // In shared memory, where the tile meets few entries: false elsewhere.
    __device__ bool add_places(const Index (&rows)[kLaneRows], const Index (&keys)[2]) {
        if (entries_.count() == 0) return false;
        int row_places[kLaneRows];
        const int key_places[2] = {entries_.place_of(keys[0]), entries_.place_of(keys[1])};
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i)
            row_places[i] = entries_.place_of(rows[i]);
        const int first = least_of(row_places) + least_of(key_places);
        const int count = most_of(row_places) + most_of(key_places) - first + 1;
        if (count <= 0 || count > mod::kTableWords) return false;
        TableCopies copies(tile_.table, first, count);
        // Addresses are sums of one part of the row and one of the key.
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i)
            row_places[i] = static_cast<int>(copies.step(row_places[i] - first));
        const unsigned to[2] = {copies.address(first + key_places[0]),
                                copies.address(first + key_places[1])};
        tile_.visit_rows<kAtOnce>([&](int first_row, const unsigned(&pairs)[kAtOnce]) {
            const int row =
                kLaneRows == 1 || first_row < 32 ? row_places[0] : row_places[kLaneRows - 1];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const unsigned from = __shfl_sync(kAll, row, first_row % 32 + i);
                add_shared(from + to[0], fixed_(flexc_first(mod::Element{}, pairs[i])));
                add_shared(from + to[1], fixed_(flexc_second(mod::Element{}, pairs[i])));
            }
        });
        copies.flush(entries_, fixed_);
        return true;
    }

    // One by one, with the buffer's ends.
    __device__ void add_each(const Index (&rows)[kLaneRows], const Index (&keys)[2]) const {
        tile_.visit_rows<1>([&](int row, const unsigned(&pairs)[1]) {
            const float of[2] = {flexc_first(mod::Element{}, pairs[0]),
                                 flexc_second(mod::Element{}, pairs[0])};
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
                    inside[side] =
                        inside[side] && flexc_inside(index[side].of[d], entries_.extent(d));
                }
            }
#pragma unroll
            for (int side = 0; side < 2; ++side)
                if (inside[side]) entries_.add(index[side], of[side]);
        });
    }

    const TableTile& tile_;
    const FixedPoint fixed_;
    const TableEntries<kTable> entries_;
};

// Another lane's value, of whole words.
template <typename Value> __device__ inline Value value_of_lane(const Value& value, int lane) {
    if constexpr (__is_empty(Value)) {
        return value;
    } else {
        static_assert(sizeof(Value) % 4 == 0);
        int words[sizeof(Value) / 4];
        memcpy(words, &value, sizeof(Value));
#pragma unroll
        for (int& word : words)
            word = __shfl_sync(0xffffffffu, word, lane);
        Value result;
        memcpy(&result, words, sizeof(Value));
        return result;
    }
}

// One read's gradient in one tile, whatever its indices. What they use of queries alone and of keys
// alone is found once for a row and for a key, the rest for each element.
template <int kTable> class TableSum {
    using Read = mod::TableGradient<kTable>;
    using Entries = TableEntries<kTable>;
    using Index = typename Entries::Index;
    static constexpr int kDims = Entries::kDims, kLaneRows = TableTile::kLaneRows;
    static constexpr int kAtOnce = kSparesRegisters ? 4 : 2;
    static constexpr int kOutside = -1;

  public:
    __device__ TableSum(const TableTile& tile, FixedPoint fixed)
        : tile_(tile), fixed_(fixed), entries_(tile) {}

    // is_finite: all of dS.
    __device__ void add(bool is_finite) {
        if (!entries_.exist()) return;
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i)
            tile_.visit(32 * i + TableTile::lane(), 0,
                        [&](const mod::At& at) { rows_[i] = Read::of_query(at); });
#pragma unroll
        for (int side = 0; side < 2; ++side)
            tile_.visit(0, TableTile::key_of(side),
                        [&](const mod::At& at) { keys_[side] = Read::of_key(at); });
        if (is_finite && entries_.count() != 0)
            add_places();
        else
            add_each();
    }

  private:
    __device__ typename Read::QueryParts of_row(int row) const {
        return value_of_lane(kLaneRows == 1 || row < 32 ? rows_[0] : rows_[kLaneRows - 1],
                             row % 32);
    }
    // Whether the element of a row and one of the lane's keys adds to one of the buffer.
    __device__ bool find(int row, int side, const typename Read::QueryParts& of_query,
                         Index& index) const {
        bool inside = true;
        tile_.visit(row, TableTile::key_of(side), [&](const mod::At& at) {
            Read::indices(at, of_query, keys_[side], index.of);
            inside = Read::applies(at, of_query, keys_[side]);
        });
#pragma unroll
        for (int d = 0; d < kDims; ++d)
            inside =
                inside && (Read::is_inside(d) || flexc_inside(index.of[d], entries_.extent(d)));
        return inside;
    }
    __device__ int place_at(int row, int side, const typename Read::QueryParts& of_query) const {
        Index index;
        return find(row, side, of_query, index) ? entries_.place_of(index) : kOutside;
    }

    // In shared memory, and in memory what no copies are of.
    __device__ void add_places() {
        TableCopies copies = this->copies();
        tile_.visit_rows<kAtOnce>([&](int first, const unsigned(&pairs)[kAtOnce]) {
            int places[kAtOnce][2];
            float d_scores[kAtOnce][2];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const typename Read::QueryParts of_query = of_row(first + i);
#pragma unroll
                for (int side = 0; side < 2; ++side)
                    places[i][side] = place_at(first + i, side, of_query);
                d_scores[i][0] = flexc_first(mod::Element{}, pairs[i]);
                d_scores[i][1] = flexc_second(mod::Element{}, pairs[i]);
            }
            bool is_done = true;
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
                for (int side = 0; side < 2; ++side) {
                    const int place = places[i][side];
                    // Else a zero is added somewhere: a branch would let elements wait for each
                    // other.
                    const bool holds = copies.hold(place);
                    add_shared(copies.address(holds ? place : copies.first()),
                               holds ? fixed_(d_scores[i][side]) : 0);
                    is_done = is_done && (holds || place == kOutside);
                }
            if (is_done) return;
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
                for (int side = 0; side < 2; ++side)
                    if (!copies.hold(places[i][side]) && places[i][side] != kOutside &&
                        d_scores[i][side] != 0)
                        entries_.add(entries_.index_of(places[i][side]), d_scores[i][side]);
        });
        copies.flush(entries_, fixed_);
    }

    // Of all entries where they have room, else of those around what a sample of the rows meets.
    __device__ TableCopies copies() const {
        const int total = entries_.count();
        if (total <= mod::kTableWords) return {tile_.table, 0, total};
        constexpr int kSamples = 8;
        int least = total, most = kOutside;
#pragma unroll 1
        for (int i = 0; i < kSamples; ++i) {
            const int row = i * (TableTile::kRows - 1) / (kSamples - 1);
            const typename Read::QueryParts of_query = of_row(row);
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const int place = place_at(row, side, of_query);
                if (place == kOutside) continue;
                least = min(least, place);
                most = max(most, place);
            }
        }
        least = __reduce_min_sync(0xffffffffu, least);
        most = __reduce_max_sync(0xffffffffu, most);
        if (most == kOutside) return {tile_.table, 0, 0};
        return TableCopies::around(tile_.table, least, most, total);
    }

    // One by one.
    __device__ void add_each() const {
        tile_.visit_rows<1>([&](int row, const unsigned(&pairs)[1]) {
            const float of[2] = {flexc_first(mod::Element{}, pairs[0]),
                                 flexc_second(mod::Element{}, pairs[0])};
            const typename Read::QueryParts of_query = of_row(row);
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                Index index;
                if (find(row, side, of_query, index) && of[side] != 0)
                    entries_.add(index, of[side]);
            }
        });
    }

    const TableTile& tile_;
    const FixedPoint fixed_;
    const TableEntries<kTable> entries_;
    typename Read::QueryParts rows_[kLaneRows]; // of the lane's queries
    typename Read::KeyParts keys_[2];           // of the lane's keys
};

template <int kTable, bool kIsSeparable = mod::TableGradient<kTable>::kIsSeparable>
struct TableSumOf {
    using Type = TableSum<kTable>;
};
template <int kTable> struct TableSumOf<kTable, true> {
    using Type = SeparableTableSum<kTable>;
};

template <int kTable = 0> __device__ inline void add_tables(const TableTile& tile, float largest) {
    if constexpr (kTable < mod::kTableGradients) {
        typename TableSumOf<kTable>::Type(tile, FixedPoint(largest)).add(largest <= kMostFinite);
        add_tables<kTable + 1>(tile, largest);
    }
}

// By one warp, for all of the block's tiles.
__device__ inline void sum_tables(const KernelArguments& attention, const mod::Arguments& arguments,
                                  Shared shared, const KeyTile& keys, int warp) {
    const unsigned memory = shared.base + kLayout.tables + warp * 4 * mod::kTableWords;
    for (int i = TableTile::lane(); i < mod::kTableWords; i += 32)
        store_shared_word(memory + 4 * i, 0);
    visit_panels(
        attention, arguments, shared, keys, warp,
        [&](const HeadPlace& place, const WarpPanel& panel, TileRange, int) {
            const TableTile tile(attention, arguments, place, panel, memory);
            const float largest = tile.largest();
            if (largest != 0) add_tables(tile, largest);
        },
        [](const HeadPlace&, TileRange) {});
}

} // namespace sm90
