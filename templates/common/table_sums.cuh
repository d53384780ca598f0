// Sums of a tile of dS over the entries of a table: finds the entries to which elements add, and
// keeps copies of those that a tile meets in shared memory. The kernel passes its tile of dS as a
// class with these members:
//     kRows, kLaneRows: rows of a warp, and of each of its lanes, which have two adjacent keys each
//     kRowsAtOnce, kElementRowsAtOnce: rows whose loads overlap; the latter where the entry of each
//         element is found separately
//     Element: the type of its elements; f32 only if that is mod::Element's
//     visit_rows<kAtOnce>(visit): calls visit(first, pairs) for rows first ... first + kAtOnce - 1
//     visit(row, key, visit): calls visit with the program's element there, or with the last one
//         of the tensors
#pragma once

#include "common/fixed_point.cuh"
#include "common/select.h"
#include "common/shared_words.cuh"

template <int kTable> class TableEntries;

// The tables from the kFirst-th on that take the sums of kTable: none.
template <int kTable, int kFirst = mod::TableGradients::kCount,
          bool kExist = (kFirst < mod::TableGradients::kCount + mod::TableGradients::kSharing)>
struct TablesOfSameSums {
    template <typename Tile> explicit __device__ TablesOfSameSums(const Tile&) {}
    template <typename Index> __device__ void add(const Index&, float) const {}
};

// The entries of a table, numbered in row-major order: a number is called a place.
template <int kTable> class TableEntries : TablesOfSameSums<kTable> {
    using Others = TablesOfSameSums<kTable>;
    using Read = mod::TableGradient<kTable>;

  public:
    static constexpr int kDims = Read::kDims;
    struct Index {
        int of[kDims];
    };

    template <typename Tile> explicit __device__ TableEntries(const Tile& tile) : Others(tile) {
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
    // Number of entries; 0 if it does not fit into an int.
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
    // Adds to an entry in global memory, and to that of tables which take the same sums.
    template <typename AnyIndex> __device__ void add(const AnyIndex& index, float d_score) const {
        Others::add(index, d_score);
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

struct NoTableEntries {
    template <typename Tile> explicit __device__ NoTableEntries(const Tile&) {}
    template <typename Index> __device__ void add(const Index&, float) const {}
};
template <int kTable, int kFirst>
struct TablesOfSameSums<kTable, kFirst, true> : TablesOfSameSums<kTable, kFirst + 1> {
    using Rest = TablesOfSameSums<kTable, kFirst + 1>;

    template <typename Tile> explicit __device__ TablesOfSameSums(const Tile& tile)
        : Rest(tile), entries(tile) {}
    template <typename Index> __device__ void add(const Index& index, float d_score) const {
        entries.add(index, d_score);
        Rest::add(index, d_score);
    }

    Select<mod::TableGradients::sums_of(kFirst) == kTable, TableEntries<kFirst>, NoTableEntries>
        entries;
};

// Places least ... most; empty if most < least.
struct PlaceRange {
    int least = 0, most = -1;
    // Whether the entries of all elements are in the range and inside the buffer.
    bool are_all = false;

    __device__ int count() const { return most - least + 1; }
};

// Fixed-point sums of some entries in shared memory, zero before and after each tile. If the
// entries need less than the available memory, each of up to 32 lanes has a copy of its own, so
// that lanes that add to the same entry do not serialise.
class TableCopies {
  public:
    // For f32 elements, the rounding error of the fixed-point sum is summed as a second part.
    static constexpr int kParts = sizeof(mod::Element) == 4 ? 2 : 1;
    static constexpr int kPartBytes = 4 * mod::TableGradients::kWords, kBytes = kParts * kPartBytes;

    // Copies of `count` entries from `first` on, up to TableGradients::kWords; 0 for none.
    __device__ TableCopies(unsigned memory, int first, int count)
        : memory_(memory), first_(first), count_(count),
          shift_(count == 0 ? 0 : min(5, 31 - __clz(mod::TableGradients::kWords / count))) {}
    // Copies of a range of places and some neighbours, or of its middle if it does not fit. total:
    // entries of the table.
    static __device__ TableCopies around(unsigned memory, const PlaceRange& places, int total) {
        const int range = places.count();
        int count = mod::TableGradients::kWords;
        while (count > 32 && count / 2 >= range + range / 8)
            count /= 2;
        const int first = max(0, min(places.least - (count - range) / 2, total - count));
        return {memory, first, min(count, total - first)};
    }

    // All entries of a table, with 1 << shift copies.
    static __device__ TableCopies of_block(unsigned memory, int count, int shift) {
        TableCopies copies(memory, 0, count);
        copies.shift_ = shift;
        return copies;
    }

    __device__ int first() const { return first_; }
    __device__ int count() const { return count_; }
    __device__ bool hold(int place) const {
        return static_cast<unsigned>(place - first_) < static_cast<unsigned>(count_);
    }
    // Address of a place in the lane's own copy, or in one that a few lanes share. Copies of an
    // entry are adjacent, so that lanes with consecutive places use as many banks as without
    // copies.
    __device__ unsigned address(int place) const {
        const unsigned copy = memory_ + 4 * (threadIdx.x % 32 >> (5 - shift_));
        return copy + step(place - first_);
    }
    // Bytes between the addresses of two entries that are `places` apart.
    __device__ unsigned step(int places) const { return places << (shift_ + 2); }

    // Adds to the sum at address `to`; adds zero if not `holds`.
    template <typename Fixed>
    static __device__ void add(unsigned to, float d_score, const Fixed& fixed, bool holds = true) {
        const int whole = fixed(d_score);
        add_shared(to, holds ? whole : 0);
        if constexpr (kParts == 2)
            add_shared(to + kPartBytes, holds ? fixed.rest(d_score, whole) : 0);
    }

    // Returns an entry's sum and clears it.
    template <typename Fixed> __device__ float take(int entry, const Fixed& fixed) const {
        float sum = static_cast<float>(take_part(entry, 0));
        if constexpr (kParts == 2)
            sum += static_cast<float>(take_part(entry, kPartBytes)) * Fixed::kUnitOfRest;
        return sum * fixed.inverse;
    }

  private:
    // Sums all copies of an entry, four at a time if there are so many.
    __device__ int take_part(int entry, int part) const {
        const unsigned from = memory_ + part + step(entry);
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
            // Lanes start at different copies, which are in different banks.
            const unsigned at = from + 16 * ((four + static_cast<int>(threadIdx.x)) & (fours - 1));
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

// The places of one read in one tile if each index is a number of the query plus a number of the
// key: both are computed once for each row and each key.
template <int kTable, typename Tile> class SeparablePlaces {
    using Read = mod::TableGradient<kTable>;
    using Entries = TableEntries<kTable>;
    using Index = typename Entries::Index;
    using Element = typename Tile::Element;
    static constexpr int kDims = Entries::kDims, kLaneRows = Tile::kLaneRows;
    static constexpr int kAtOnce = Tile::kRowsAtOnce;
    static constexpr unsigned kAll = 0xffffffffu;

  public:
    __device__ SeparablePlaces(const Tile& tile, const Entries& entries)
        : tile_(tile), entries_(entries) {
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i)
            rows_[i] = index_at(min(32 * i + Tile::lane(), Tile::kRows - 1), 0);
#pragma unroll
        for (int side = 0; side < 2; ++side)
            keys_[side] = index_at(0, Tile::key_of(side));
#pragma unroll
        for (int d = 0; d < kDims; ++d) {
            const int origin = __shfl_sync(kAll, rows_[0].of[d], 0);
            keys_[0].of[d] -= origin;
            keys_[1].of[d] -= origin;
        }
    }

    // The range of places of the warp's elements.
    __device__ PlaceRange range() const {
        PlaceRange range;
        const int total = entries_.count();
        if (total == 0) return range;
        int row_places[kLaneRows];
        const int key_places[2] = {entries_.place_of(keys_[0]), entries_.place_of(keys_[1])};
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i)
            row_places[i] = entries_.place_of(rows_[i]);
        range.least = least_of(row_places) + least_of(key_places);
        range.most = most_of(row_places) + most_of(key_places);
        range.are_all = are_inside();
        return range;
    }

    // Adds to copies that hold every place the warp's elements meet, all of them inside the buffer.
    template <typename Fixed>
    __device__ void add(const TableCopies& copies, const Fixed& fixed) const {
        // An address is a part of the row plus a part of the key.
        const int first = copies.first();
        int row_steps[kLaneRows];
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i)
            row_steps[i] = static_cast<int>(copies.step(entries_.place_of(rows_[i]) - first));
        const unsigned to[2] = {copies.address(first + entries_.place_of(keys_[0])),
                                copies.address(first + entries_.place_of(keys_[1]))};
        tile_.template visit_rows<kAtOnce>(
            [&](int first_row, const typename Tile::Pair(&pairs)[kAtOnce]) {
                const int row =
                    kLaneRows == 1 || first_row < 32 ? row_steps[0] : row_steps[kLaneRows - 1];
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i) {
                    const unsigned from = __shfl_sync(kAll, row, first_row % 32 + i);
                    TableCopies::add(from + to[0], flexc_first(Element{}, pairs[i]), fixed);
                    TableCopies::add(from + to[1], flexc_second(Element{}, pairs[i]), fixed);
                }
            });
    }
    // Adds to copies that hold only some of the places; the others are added to global memory.
    template <typename Fixed>
    __device__ void add_some(const TableCopies& copies, const Fixed& fixed) const {
        add_each([&](const Index& index, float d_score) {
            const int place = entries_.place_of(index);
            if (copies.hold(place))
                TableCopies::add(copies.address(place), d_score, fixed);
            else
                entries_.add(index, d_score);
        });
    }
    __device__ void add_to_memory() const {
        add_each([&](const Index& index, float d_score) { entries_.add(index, d_score); });
    }

  private:
    // The indices at a query and a key of the tile.
    __device__ Index index_at(int row, int key) const {
        Index index;
        tile_.visit(row, key, [&](const mod::At& at) { Read::indices(at, index.of); });
        return index;
    }

    // Least value over all of the warp's queries, or keys.
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

    // Whether every element's index is inside the buffer.
    __device__ bool are_inside() const {
        bool inside = true;
#pragma unroll
        for (int d = 0; d < kDims; ++d) {
            int of_rows[kLaneRows], of_keys[2] = {keys_[0].of[d], keys_[1].of[d]};
#pragma unroll
            for (int i = 0; i < kLaneRows; ++i)
                of_rows[i] = rows_[i].of[d];
            const long long low = static_cast<long long>(least_of(of_rows)) + least_of(of_keys);
            const long long high = static_cast<long long>(most_of(of_rows)) + most_of(of_keys);
            inside = inside && low >= 0 && high < entries_.extent(d);
        }
        return inside;
    }

    // Calls add_element(index, d_score) for each element whose index is inside the buffer.
    template <typename Add> __device__ void add_each(Add add_element) const {
        tile_.template visit_rows<1>([&](int row, const typename Tile::Pair(&pairs)[1]) {
            const float of[2] = {flexc_first(Element{}, pairs[0]),
                                 flexc_second(Element{}, pairs[0])};
            Index index[2];
            bool inside[2] = {of[0] != 0, of[1] != 0};
#pragma unroll
            for (int d = 0; d < kDims; ++d) {
                const int mine =
                    kLaneRows == 1 || row < 32 ? rows_[0].of[d] : rows_[kLaneRows - 1].of[d];
                const int of_row = __shfl_sync(kAll, mine, row % 32);
#pragma unroll
                for (int side = 0; side < 2; ++side) {
                    index[side].of[d] = of_row + keys_[side].of[d];
                    inside[side] =
                        inside[side] && flexc_inside(index[side].of[d], entries_.extent(d));
                }
            }
#pragma unroll
            for (int side = 0; side < 2; ++side)
                if (inside[side]) add_element(index[side], of[side]);
        });
    }

    const Tile& tile_;
    const Entries& entries_;
    Index rows_[kLaneRows], keys_[2]; // of the lane's queries, and what its keys add to these
};

// Returns the value of another lane; its size is a multiple of 4 bytes.
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

// The same for any indices. What they use of queries alone or of keys alone is computed once for
// each row and each key, the rest for each element.
template <int kTable, typename Tile> class PlacesOfElements {
    using Read = mod::TableGradient<kTable>;
    using Entries = TableEntries<kTable>;
    using Index = typename Entries::Index;
    using Element = typename Tile::Element;
    static constexpr int kDims = Entries::kDims, kLaneRows = Tile::kLaneRows;
    static constexpr int kAtOnce = Tile::kElementRowsAtOnce;
    static constexpr int kOutside = -1;

  public:
    __device__ PlacesOfElements(const Tile& tile, const Entries& entries)
        : tile_(tile), entries_(entries) {
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i)
            tile_.visit(min(32 * i + Tile::lane(), Tile::kRows - 1), 0,
                        [&](const mod::At& at) { rows_[i] = Read::of_query(at); });
#pragma unroll
        for (int side = 0; side < 2; ++side)
            tile_.visit(0, Tile::key_of(side),
                        [&](const mod::At& at) { keys_[side] = Read::of_key(at); });
    }

    // The range of places of the warp's elements: all entries if they fit into the copies,
    // otherwise the range that a sample of the rows meets.
    __device__ PlaceRange range() const {
        PlaceRange range;
        const int total = entries_.count();
        if (total <= mod::TableGradients::kWords) {
            range.most = total - 1;
            return range;
        }
        constexpr int kSamples = 8;
        int least = total, most = kOutside;
#pragma unroll 1
        for (int i = 0; i < kSamples; ++i) {
            const int row = i * (Tile::kRows - 1) / (kSamples - 1);
            const typename Read::QueryParts of_query = of_row(row);
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const int place = place_at(row, side, of_query);
                if (place == kOutside) continue;
                least = min(least, place);
                most = max(most, place);
            }
        }
        range.least = __reduce_min_sync(0xffffffffu, least);
        range.most = __reduce_max_sync(0xffffffffu, most);
        return range;
    }

    // Adds to the copies, and to global memory what these do not hold.
    template <typename Fixed>
    __device__ void add(const TableCopies& copies, const Fixed& fixed) const {
        tile_.template visit_rows<kAtOnce>(
            [&](int first, const typename Tile::Pair(&pairs)[kAtOnce]) {
                int places[kAtOnce][2];
                float d_scores[kAtOnce][2];
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i) {
                    const typename Read::QueryParts of_query = of_row(first + i);
#pragma unroll
                    for (int side = 0; side < 2; ++side)
                        places[i][side] = place_at(first + i, side, of_query);
                    d_scores[i][0] = flexc_first(Element{}, pairs[i]);
                    d_scores[i][1] = flexc_second(Element{}, pairs[i]);
                }
                bool is_done = true;
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
                    for (int side = 0; side < 2; ++side) {
                        const int place = places[i][side];
                        // If the copies do not hold the place, zero is added to some entry: with a
                        // branch, elements would wait for each other.
                        const bool holds = copies.hold(place);
                        TableCopies::add(copies.address(holds ? place : copies.first()),
                                         d_scores[i][side], fixed, holds);
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
    }
    // Adds each element to global memory.
    __device__ void add_to_memory() const {
        tile_.template visit_rows<1>([&](int row, const typename Tile::Pair(&pairs)[1]) {
            const float of[2] = {flexc_first(Element{}, pairs[0]),
                                 flexc_second(Element{}, pairs[0])};
            const typename Read::QueryParts of_query = of_row(row);
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                Index index;
                if (find(row, side, of_query, index) && of[side] != 0)
                    entries_.add(index, of[side]);
            }
        });
    }

  private:
    __device__ typename Read::QueryParts of_row(int row) const {
        return value_of_lane(kLaneRows == 1 || row < 32 ? rows_[0] : rows_[kLaneRows - 1],
                             row % 32);
    }
    // Finds the index for the element of a row and one of the lane's keys; false if it adds to no
    // entry.
    __device__ bool find(int row, int side, const typename Read::QueryParts& of_query,
                         Index& index) const {
        bool inside = true;
        tile_.visit(row, Tile::key_of(side), [&](const mod::At& at) {
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

    const Tile& tile_;
    const Entries& entries_;
    typename Read::QueryParts rows_[kLaneRows]; // of the lane's queries
    typename Read::KeyParts keys_[2];           // of the lane's keys
};

template <int kTable, typename Tile, bool kIsSeparable = mod::TableGradient<kTable>::kIsSeparable>
struct PlacesOf {
    using Type = PlacesOfElements<kTable, Tile>;
};
template <int kTable, typename Tile> struct PlacesOf<kTable, Tile, true> {
    using Type = SeparablePlaces<kTable, Tile>;
};
