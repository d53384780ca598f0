// Gradients of reads of tables that are small, or of which a tile meets a small part, whatever
// their indices are. Two warps of the producer warpgroup add a tile of dS to copies of that part
// in shared memory, each warp to its own, and what is not zero there to memory once a tile.
#pragma once

#include "common/table_sums.cuh"
#include "sm90/gradients/bias_beside.cuh"
#include "sm90/gradients/sum.cuh"
#include "sm90/gradients/warp_panel.cuh"

namespace sm90 {

// Fixed point with so many bits that sums of all of a warp's elements have room; nothing is lost
// that 16 bits of dS had beside the largest.
using TableFixedPoint = FixedPoint<19>;

// A warp's panel, of which each lane has two neighbouring keys.
struct TableTile : WarpPanel {
    static constexpr int kLaneRows = (kRows + 31) / 32;
    // Numbers of rows whose loads are in flight at once.
    static constexpr int kRowsAtOnce = kSparesRegisters ? 8 : 4;
    static constexpr int kElementRowsAtOnce = kSparesRegisters ? 4 : 2;
    using Element = SummedElement;
    using Pair = unsigned;
    static_assert(!(mod::TableGradients::kCount > 0) || kRows % 32 == 0);

    const KernelArguments& attention;
    const mod::Arguments& arguments;
    const HeadPlace& place;
    unsigned table; // the warp's memory

    __device__ TableTile(const KernelArguments& attention, const mod::Arguments& arguments,
                         const HeadPlace& place, const WarpPanel& panel, unsigned memory)
        : WarpPanel(panel), attention(attention), arguments(arguments), place(place),
          table(memory) {}

    static __device__ int key_of(int side) { return 2 * lane() + side; }

    // Calls visit(first, words) for rows first ... first + kAtOnce - 1; words: the lane's two keys
    // of each.
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

    // Returns the largest absolute value of an element; infinity or NaN if there is any.
    __device__ float largest() const {
        unsigned most = 0;
        visit_rows<kRowsAtOnce>([&](int, const unsigned(&words)[kRowsAtOnce]) {
#pragma unroll
            for (const unsigned word : words)
                most = largest_of_halves(most, word & 0x7fff7fffu);
        });
        most = max(most & 0xffffu, most >> 16);
        return flexc_first(Element{}, __reduce_max_sync(0xffffffffu, most));
    }

    // Calls visit_at(at) with the element at a query and a key of the tile, or at the tensors' last
    // ones.
    template <typename Visit> __device__ auto visit(int row, int key, Visit visit_at) const {
        return visit_element(attention, arguments, place,
                             min(first_query + row, attention.q_len - 1),
                             min(first_key + key, attention.kv_len - 1), visit_at);
    }
};

// Adds sums to memory, and leaves zeros.
template <typename Entries>
__device__ inline void flush(const TableCopies& copies, const Entries& entries,
                             TableFixedPoint fixed) {
    __syncwarp();
#pragma unroll 1
    for (int entry = TableTile::lane(); entry < copies.count(); entry += 32) {
        const float sum = copies.take(entry, fixed);
        if (sum != 0) entries.add(entries.index_of(copies.first() + entry), sum);
    }
    __syncwarp();
}

// Returns the entries that a warp has copies of in shared memory. If places are sums of two
// numbers: exactly those that elements meet, where they have room, else none. Otherwise: all, or
// those around what a sample meets.
template <int kTable>
__device__ inline TableCopies copies_of(const TableTile& tile, const PlaceRange& range, int total) {
    constexpr bool kIsSeparable = mod::TableGradient<kTable>::kIsSeparable;
    const bool have_room = range.count() <= mod::TableGradients::kWords;
    if (range.count() <= 0 || (kIsSeparable && !(range.are_all && have_room)))
        return {tile.table, 0, 0};
    if (kIsSeparable || total <= mod::TableGradients::kWords)
        return {tile.table, range.least, range.count()};
    return TableCopies::around(tile.table, range, total);
}

// Adds a tile to all tables but kLeftOut.
template <int kLeftOut, int kTable = 0>
__device__ inline void add_tables(const TableTile& tile, float largest) {
    if constexpr (kTable == kLeftOut) {
        add_tables<kLeftOut, kTable + 1>(tile, largest);
    } else if constexpr (kTable < mod::TableGradients::kCount) {
        const TableEntries<kTable> entries(tile);
        if (entries.exist()) {
            const typename PlacesOf<kTable, TableTile>::Type places(tile, entries);
            const TableFixedPoint fixed(largest);
            const bool is_finite = largest <= kMostFinite;
            const PlaceRange range = is_finite ? places.range() : PlaceRange();
            const TableCopies copies = copies_of<kTable>(tile, range, entries.count());
            if (copies.count() == 0) {
                places.add_to_memory();
            } else {
                places.add(copies, fixed);
                flush(copies, entries, fixed);
            }
        }
        add_tables<kLeftOut, kTable + 1>(tile, largest);
    }
}

template <int kLeftOut> __device__ inline void add_tables_of(const TableTile& tile) {
    const float largest = tile.largest();
    if (largest != 0) add_tables<kLeftOut>(tile, largest);
}

// Returns the address of the memory of a warp that sums, and clears it.
__device__ inline unsigned tables_of(Shared shared, int warp) {
    return shared.base + kLayout.tables + 4 * warp * kTableWords;
}
__device__ inline void clear_tables(Shared shared, int warp) {
    for (int i = TableTile::lane(); i < mod::TableGradients::kWords; i += 32)
        store_shared_word(tables_of(shared, warp) + 4 * i, 0);
}

// Called by one warp, for all of the block's tiles.
__device__ inline void sum_tables(const KernelArguments& attention, const mod::Arguments& arguments,
                                  Shared shared, const KeyTile& keys, int warp) {
    const unsigned memory = tables_of(shared, warp);
    clear_tables(shared, warp);
    visit_panels(
        attention, arguments, shared, keys, warp,
        [&](const HeadPlace& place, const WarpPanel& panel, TileRange, int) {
            add_tables_of<-1>(TableTile(attention, arguments, place, panel, memory));
            add_biases(attention, arguments, place, panel);
        },
        [](const HeadPlace&, TileRange) {});
}

} // namespace sm90
