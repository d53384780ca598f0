// Gradients of reads that meet few entries of a buffer in each tile. The block's warps add a tile
// of dS, which is in shared memory for dk and dq, or of what elements add instead (a weighted
// table's), to fixed-point sums in shared memory. After a
// barrier these are added to sums in floats, each entry by one thread. The sums in floats are kept
// across tiles and added to global memory once a head, or when a tile meets entries outside the
// current window. The barriers are those that the matrix products need anyway.
#pragma once

#include "common/math.cuh"
#include "common/select.h"
#include "common/table_sums.cuh"
#include "sm80/layout.h"
#include "sm80/surroundings.cuh"

namespace sm80 {

struct FloatPair {
    float first, second;
};
__device__ inline float flexc_first(float, const FloatPair& pair) { return pair.first; }
__device__ inline float flexc_second(float, const FloatPair& pair) { return pair.second; }

constexpr TableSumSizes kTableSumSizes = {mod::TableGradients::kCount, mod::TableGradients::kWords,
                                          mod::kWarps,
                                          mod::TableGradients::kWeightedPartial >= 0};

// What elements add to weighted tables. A factor may leave the range of f16 where dS does not.
using WeightedElement = Select<sizeof(mod::Element) == 4, float, flexc_bf16>;

// A warp's share of a tile of dS, or of what is added instead: 64 keys and some of the queries.
template <typename E> struct TableTileOf {
    static constexpr int kElementBytes = static_cast<int>(sizeof(E));
    static constexpr int kPitch = tile_row_bytes(mod::kKeyTile, kElementBytes);
    static constexpr int kKeys = 64, kPanels = larger(1, mod::kKeyTile / kKeys);
    static constexpr int kRows = mod::kQueryTile * kPanels / mod::kWarps;
    static constexpr int kLaneRows = (kRows + 31) / 32;
    static constexpr int kRowsAtOnce = 4, kElementRowsAtOnce = 2;
    using Element = E;
    using Pair = Select<kElementBytes == 4, FloatPair, unsigned>;
    static_assert(mod::TableGradients::kCount == 0 ||
                  (mod::kKeyTile % kKeys == 0 && mod::kWarps % kPanels == 0 &&
                   kRows % kRowsAtOnce == 0 && kLaneRows <= 2));

    const Surroundings& around;
    int first_query, first_key;
    unsigned d_scores; // from the first row on

    __device__ TableTileOf(const Surroundings& around, int first_q, int first_kv, unsigned tile = 0)
        : around(around), first_query(first_q + first_row()), first_key(first_kv + first_column()),
          d_scores(tile + first_row() * kPitch + first_column() * kElementBytes) {}

    static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
    static __device__ int key_of(int side) { return 2 * lane() + side; }

    template <int kAtOnce, typename Visit> __device__ void visit_rows(Visit visit) const {
        const unsigned from = d_scores + 2 * lane() * kElementBytes;
#pragma unroll 1
        for (int first = 0; first < kRows; first += kAtOnce) {
            Pair pairs[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
                load(pairs[i], from + (first + i) * kPitch);
            visit(first, pairs);
        }
    }

    template <typename Visit> __device__ auto visit(int row, int key, Visit visit_at) const {
        const auto& [attention, arguments, place, length] = around;
        const int q = length.q_idx(first_query + row), kv = length.kv_idx(first_key + key);
        const mod::Row of_row =
            mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv, q);
        const mod::Column of_key =
            mod::at_column(arguments, place.launch, place.head, place.b, place.h, place.h_kv, kv);
        return visit_at(mod::At{arguments, place.launch, place.head, of_row, of_key, place.b,
                                place.h, place.h_kv, q, kv});
    }

  private:
    static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
    static __device__ int first_row() { return warp() / kPanels * kRows; }
    static __device__ int first_column() { return warp() % kPanels * kKeys; }

    static __device__ void load(unsigned& pair, unsigned from) { pair = load_shared_word(from); }
    static __device__ void load(FloatPair& pair, unsigned from) {
        pair = {__uint_as_float(load_shared_word(from)),
                __uint_as_float(load_shared_word(from + 4))};
    }
};

using TableTile = TableTileOf<mod::Element>;

// Bits of a fixed-point number, such that a sum over all elements of a tile cannot overflow 32
// bits.
constexpr int table_bits() {
    int bits = 31;
    for (int elements = mod::kQueryTile * mod::kKeyTile; elements > 1; elements /= 2)
        --bits;
    return bits < 19 ? bits : 19;
}
using TableFixedPoint = FixedPoint<table_bits()>;

__device__ inline constexpr float most_finite(flexc_f16) { return 65504; }
__device__ inline constexpr float most_finite(flexc_bf16) { return kMostFinite; }
__device__ inline constexpr float most_finite(float) { return kMostFinite; }

class TableSums {
    static constexpr bool kHasWeighted = kTableSumSizes.has_weighted;
    static constexpr int kTiles = kHasWeighted ? 2 : 1; // of dS, and of what is added instead
    static constexpr int kThreads = 32 * mod::kWarps;
    static constexpr int kTableBytes = kTableSumSizes.table_bytes(TableTile::kElementBytes);
    static constexpr int kFloats = kTableSumSizes.floats(TableTile::kElementBytes);
    static constexpr unsigned kAll = 0xffffffffu;

  public:
    // memory: address of the sums in shared memory, which are cleared here.
    explicit __device__ TableSums(unsigned memory) : memory_(memory) {
        for (int i = thread(); i < kTableSumSizes.tables * kTableBytes / 4; i += kThreads)
            store_shared_word(memory + 4 * i, 0);
    }

    // Takes some of the thread's elements of a tile (0: of dS, 1: of what is added instead) into
    // account for the tile's fixed-point scale.
    template <int kTile = 0, int kFragments, int kColumns>
    __device__ void update_largest(const float (&elements)[kFragments][kColumns][4]) {
#pragma unroll
        for (int i = 0; i < kFragments * kColumns * 4; ++i)
            largest_[kTile] =
                max(largest_[kTile],
                    __float_as_uint(elements[i / 4 / kColumns][i / 4 % kColumns][i % 4]) &
                        0x7fffffffu);
    }
    // Each warp publishes its largest elements, and the range of entries that it will add to in
    // large tables. A barrier must follow.
    __device__ void publish_ranges(const Surroundings& around, int first_q, int first_kv) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const unsigned largest = __reduce_max_sync(kAll, largest_[tile]);
            if (TableTile::lane() == 0)
                store_shared_word(published(thread() / 32, word_of_largest(tile)), largest);
            largest_[tile] = 0;
        }
        publish_range<0>(TableTile(around, first_q, first_kv));
    }
    // Adds a tile of dS, and the one of what is added instead. Before the next publish_ranges(), a
    // barrier and take() must follow.
    template <typename DScores, typename Weighted>
    __device__ void add(const Surroundings& around, DScores d_scores, Weighted weighted,
                        int first_q, int first_kv) {
        add_tile<0>(TableTile(around, first_q, first_kv, d_scores.base));
        if constexpr (kHasWeighted)
            add_tile<1>(
                TableTileOf<WeightedElement>(around, first_q, first_kv, weighted.base));
    }
    // Adds the fixed-point sums of the last tile to the sums in floats.
    __device__ void take() {
        take_tile<0>();
        if constexpr (kHasWeighted) take_tile<1>();
    }
    // Adds the sums to the gradients in global memory, after the last tile of queries of a head.
    __device__ void flush(const Surroundings& around, int first_kv) {
        __syncthreads();
        take();
        flush_table<0>(TableTile(around, 0, first_kv));
    }

  private:
    // The range of a table's entries whose sums are in shared memory.
    struct Window {
        int first = 0, count = 0;
        __device__ bool holds(const PlaceRange& range) const {
            return range.least >= first && range.most < first + count;
        }
    };

    static __device__ int thread() { return static_cast<int>(threadIdx.x); }
    __device__ unsigned table(int table) const { return memory_ + table * kTableBytes; }
    __device__ unsigned sum_of(int table, int entry) const {
        return this->table(table) + kFloats + 4 * entry;
    }
    // Which tile's elements are added to a table.
    static constexpr __device__ int tile_of(int table) {
        return mod::TableGradients::is_weighted(table) ? 1 : 0;
    }
    // Address of a word that a warp has published about a tile: word 0 is the largest dS, words 1 +
    // 2 * table and 2 + 2 * table are the first and last entry, and the last one is the largest of
    // what is added instead of dS.
    static constexpr __device__ int word_of_largest(int tile) {
        return tile == 0 ? 0 : 1 + 2 * kTableSumSizes.tables;
    }
    __device__ unsigned published(int warp, int word) const {
        return memory_ + kTableSumSizes.tables * kTableBytes +
               warp * kTableSumSizes.warp_bytes() + 4 * word;
    }
    __device__ TableCopies copies_of(int table) const {
        return {this->table(table), windows_[table].first, windows_[table].count};
    }
    // Whether a table has too many entries for shared memory, so that each tile chooses a window of
    // them.
    template <typename Entries> static __device__ bool are_many(const Entries& entries) {
        return entries.count() > mod::TableGradients::kWords;
    }

    template <int kTable> __device__ void publish_range(const TableTile& tile) const {
        if constexpr (kTable < mod::TableGradients::kCount) {
            const TableEntries<kTable> entries(tile);
            if (entries.exist() && are_many(entries)) {
                const typename PlacesOf<kTable, TableTile>::Type places(tile, entries);
                const PlaceRange range = places.range();
                if (TableTile::lane() == 0) {
                    store_shared_word(published(thread() / 32, 1 + 2 * kTable),
                                      max(range.least, 0));
                    store_shared_word(published(thread() / 32, 2 + 2 * kTable),
                                      min(range.most, entries.count() - 1));
                }
            }
            publish_range<kTable + 1>(tile);
        }
    }
    // Returns the range of entries that any warp of the block meets.
    template <int kTable> __device__ PlaceRange range_of_block(int total) const {
        const int lane = TableTile::lane();
        PlaceRange range{total, -1};
        if (lane < mod::kWarps) {
            range.least = static_cast<int>(load_shared_word(published(lane, 1 + 2 * kTable)));
            range.most = static_cast<int>(load_shared_word(published(lane, 2 + 2 * kTable)));
        }
        range.least = __reduce_min_sync(kAll, range.least);
        range.most = __reduce_max_sync(kAll, range.most);
        return range;
    }

    template <int kTable, typename Entries> __device__ void move_window(const Entries& entries) {
        Window& window = windows_[kTable];
        const int total = entries.count();
        if (!are_many(entries)) {
            window = {0, total};
            return;
        }
        const PlaceRange range = range_of_block<kTable>(total);
        const bool have_room = range.count() <= mod::TableGradients::kWords;
        if (range.count() <= 0 || window.holds(range)) return;
        // If the range does not fit, keep the window: otherwise many sums would be flushed at every
        // tile, and few of them would be needed by the next.
        if (!have_room && (mod::TableGradient<kTable>::kIsSeparable || window.count != 0)) return;
        flush_window<kTable>(entries);
        window = {range.least, range.count()};
        if (!mod::TableGradient<kTable>::kIsSeparable) {
            const TableCopies around = TableCopies::around(0, range, total);
            window = {around.first(), around.count()};
        }
    }

    template <int kTile, typename Tile> __device__ void add_tile(const Tile& tile) {
        const int lane = TableTile::lane();
        const unsigned seen =
            lane < mod::kWarps ? load_shared_word(published(lane, word_of_largest(kTile))) : 0;
        // Rounding to 16 bits may have increased it.
        const float largest = __uint_as_float(__reduce_max_sync(kAll, seen)) * (1 + 0x1p-7F);
        const bool is_finite = largest <= most_finite(typename Tile::Element{});
        added_[kTile] = is_finite ? largest : 0;
        if (!is_finite || largest != 0) add_table<kTile, 0>(tile, is_finite);
    }
    template <int kTile> __device__ void take_tile() {
        if (added_[kTile] == 0) return;
        take_table<kTile, 0>(TableFixedPoint(added_[kTile]));
        added_[kTile] = 0;
    }

    template <int kTile, int kTable, typename Tile>
    __device__ void add_table(const Tile& tile, bool is_finite) {
        if constexpr (kTable < mod::TableGradients::kCount && tile_of(kTable) != kTile) {
            add_table<kTile, kTable + 1>(tile, is_finite);
        } else if constexpr (kTable < mod::TableGradients::kCount) {
            const TableEntries<kTable> entries(tile);
            if (entries.exist()) {
                const bool has_places = is_finite && entries.count() != 0;
                if (has_places) move_window<kTable>(entries);
                const typename PlacesOf<kTable, Tile>::Type places(tile, entries);
                if (has_places)
                    add_places<kTable>(places);
                else
                    places.add_to_memory();
            }
            add_table<kTile, kTable + 1>(tile, is_finite);
        }
    }

    template <int kTable, typename Places> __device__ void add_places(const Places& places) const {
        const TableCopies copies = copies_of(kTable);
        const TableFixedPoint fixed(added_[tile_of(kTable)]);
        if constexpr (mod::TableGradient<kTable>::kIsSeparable) {
            const PlaceRange range = places.range();
            if (!range.are_all || !windows_[kTable].holds(range)) {
                places.add_some(copies, fixed);
                return;
            }
        }
        places.add(copies, fixed);
    }

    template <int kTile, int kTable> __device__ void take_table(TableFixedPoint fixed) const {
        if constexpr (kTable < mod::TableGradients::kCount && tile_of(kTable) != kTile) {
            take_table<kTile, kTable + 1>(fixed);
        } else if constexpr (kTable < mod::TableGradients::kCount) {
            const TableCopies copies = copies_of(kTable);
#pragma unroll 1
            for (int entry = thread(); entry < copies.count(); entry += kThreads) {
                const float sum = copies.take(entry, fixed);
                const unsigned to = sum_of(kTable, entry);
                if (sum != 0)
                    store_shared_word(to,
                                      __float_as_uint(__uint_as_float(load_shared_word(to)) + sum));
            }
            take_table<kTile, kTable + 1>(fixed);
        }
    }

    // Adds the window's sums to global memory and clears them.
    template <int kTable, typename Entries>
    __device__ void flush_window(const Entries& entries) const {
        const Window window = windows_[kTable];
#pragma unroll 1
        for (int entry = thread(); entry < window.count; entry += kThreads) {
            const float sum = __uint_as_float(load_shared_word(sum_of(kTable, entry)));
            if (sum == 0) continue;
            store_shared_word(sum_of(kTable, entry), 0);
            entries.add(entries.index_of(window.first + entry), sum);
        }
    }
    template <int kTable> __device__ void flush_table(const TableTile& tile) {
        if constexpr (kTable < mod::TableGradients::kCount) {
            if (windows_[kTable].count != 0) flush_window<kTable>(TableEntries<kTable>(tile));
            windows_[kTable] = {};
            flush_table<kTable + 1>(tile);
        }
    }

    unsigned memory_;
    // Of each tile: what the thread has seen, as bits, and the largest of the one that was added in
    // whole numbers; 0: none was.
    unsigned largest_[kTiles] = {};
    float added_[kTiles] = {};
    Window windows_[larger(1, mod::TableGradients::kCount)];
};

struct NoTableSums {
    explicit __device__ NoTableSums(unsigned) {}
    template <int kTile = 0, typename Elements>
    __device__ void update_largest(const Elements&) {}
    __device__ void publish_ranges(const Surroundings&, int, int) {}
    template <typename DScores, typename Weighted>
    __device__ void add(const Surroundings&, DScores, Weighted, int, int) {}
    __device__ void take() {}
    __device__ void flush(const Surroundings&, int) {}
};
using TableGradients = Select<(mod::TableGradients::kCount > 0), TableSums, NoTableSums>;

} // namespace sm80
