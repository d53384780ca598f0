// Shared memory of Hopper's forward kernel: what lies where, and how much of it there is. Included
// by device and host code.
#pragma once

#include "common/host_device.h"
#include "common/tabulated.h"
#include "sm90/shifted_layout.h"

namespace sm90 {

// The numbers of a configuration that decide what the kernel keeps in shared memory.
struct ForwardSizes {
#define FLEXC_MEMBER(type, name) type name = {};
#include "sm90/forward_sizes.def"

    FLEXC_SHARED constexpr bool adds_kinds() const {
        return kind_columns != 0 || kind_copies != 0 || pair_kinds != 0;
    }
    // Whether QK has one more step, whose operands are 16 bytes for each row, without a swizzle.
    FLEXC_SHARED constexpr bool has_addend_step() const {
        return multiplies_index_2d_rows || multiplies_key_addend || multiplies_slope;
    }
    // Operands of 16 bytes that each key has in such steps. A step has two products.
    FLEXC_SHARED constexpr int key_operands() const {
        return multiplies_key_addend ? 1 : (row_key_products + 1) / 2 * 2;
    }
};

// A tile of the dense bias, in which lanes that read the same columns of eight rows do not meet in
// a bank. Where rows are whole lines of all banks, a tile is panels of that width whose chunks are
// swizzled within each line, as TMA leaves them; else rows are a chunk or two apart.
struct BiasTileLayout {
    bool is_swizzled;
    int row_bytes, panels, panel_bytes;
};
FLEXC_SHARED constexpr BiasTileLayout bias_tile_layout(int query_tile, int key_tile,
                                                       int element_bytes) {
    constexpr int kLine = 128;
    const int bytes = key_tile * element_bytes;
    if (bytes % kLine == 0) return {true, kLine, bytes / kLine, query_tile * kLine};
    const int padded = bytes + 8 * element_bytes;
    return {false, padded, 1, query_tile * padded};
}

// Slices of the tabulated vectors for a tile of queries and one of keys. Threads read pairs of
// floats, which start at even entries. A vector by distance is there twice, the second time without
// its first entry, for pairs that start at odd ones: half of a warp reads each, and the gap keeps
// the two in different banks. Where products are added to a vector, each entry is the four numbers
// that a thread's accumulators start with.
struct TabulatedLayout {
    static constexpr int kStartBytes = 4 * kStartFloats;
    int distances; // between the tiles
    int twin;      // entry at which the second copy starts
    int key_bytes, distance_bytes;
};
FLEXC_SHARED constexpr TabulatedLayout tabulated_layout(int query_tile, int key_tile,
                                                        bool starts_with_distances) {
    const int distances = query_tile + key_tile;
    const int twin = distances + (distances % 32 == 0 ? 16 : 0);
    const int bytes =
        starts_with_distances ? TabulatedLayout::kStartBytes * distances : 4 * (twin + distances);
    return {distances, twin, 4 * key_tile, bytes};
}

// Kinds of keys that lanes have copies of. For each tile of keys a byte says which copy a key
// takes: four lanes share the columns of a row, and a lane's bytes are side by side. For each warp,
// row of its lanes and kind, and for keys of no kind, a word of each lane.
struct KindCopiesLayout {
    static constexpr int kLanes = 4, kRows = 2, kCopyBytes = 128; // of all lanes of a warp
    static FLEXC_SHARED constexpr int lane_bytes(int key_tile) {
        return (key_tile / kLanes + 15) / 16 * 16;
    }
    int key_bytes, row_bytes, warp_bytes;
};
FLEXC_SHARED constexpr KindCopiesLayout kind_copies_layout(int key_tile, int kinds) {
    if (kinds == 0) return {0, 0, 0};
    const int row_bytes = (kinds + 1) * KindCopiesLayout::kCopyBytes;
    return {KindCopiesLayout::kLanes * KindCopiesLayout::lane_bytes(key_tile), row_bytes,
            KindCopiesLayout::kRows * row_bytes};
}

// Kinds of pairs of a query and a key that lanes have copies of. A byte, or two of more kinds, says
// which copy an element takes. Those of a lane's row in a tile are side by side, and chunks of 16
// bytes of a warp's lanes, so that loads meet no bank twice. All warps read the same copies, which
// have the place of a table.
struct PairKindsLayout {
    static constexpr int kChunk = 16;
    static constexpr int kMostInBytes = 255; // and that a pair has none
    int kind_bytes;
    int row_chunks; // of a lane's row
    int warp_bytes, tile_bytes;
    int entries; // of which there are copies: all kinds, and pairs of no kind
};
FLEXC_SHARED constexpr PairKindsLayout pair_kinds_layout(int query_tile, int key_tile, int kinds) {
    constexpr int kWarpLanes = 32, kWarpRows = 16;
    const int kind_bytes = kinds <= PairKindsLayout::kMostInBytes ? 1 : 2;
    const int row_chunks =
        kind_bytes * KindCopiesLayout::lane_bytes(key_tile) / PairKindsLayout::kChunk;
    const int warp_bytes =
        KindCopiesLayout::kRows * row_chunks * kWarpLanes * PairKindsLayout::kChunk;
    if (kinds == 0) return {kind_bytes, row_chunks, warp_bytes, 0, 0};
    return {kind_bytes, row_chunks, warp_bytes, query_tile / kWarpRows * warp_bytes, kinds + 1};
}

// Bytes for the ends of a shifted read's lines: a line that is beyond a clamp is one float.
FLEXC_SHARED constexpr int shifted_end_bytes(int lines) { return 4 * lines; }

// A ring of stages, each with a barrier that says when it is full and one for when it is empty.
struct RingLayout {
    int stages = 0, bytes = 0; // of one stage
    int memory = 0, barriers = 0;
};

// Offsets in shared memory. First tasks, barriers and words, then the rings' stages.
struct ForwardLayout {
    static constexpr int kRowBytes = 128;      // of a panel: 64 columns, as wide as TMA's swizzle
    static constexpr int kSwizzleBytes = 1024; // after which the swizzle repeats: where tiles start
    static constexpr int kTaskBytes = 48;      // what the producer says about a tile of queries
    static constexpr int kLengthBytes = 32;    // and about its request, where queries are ragged
    static constexpr int kAddendBytes = 16;    // of a row's parts of an addend
    static constexpr int kUnitBytes = 8 * kAddendBytes;
    static constexpr int kOperandRows = 64; // queries of a warpgroup

    RingLayout queries, keys, values, biases, shifted_ends, tabulated, index_2d_rows, tables;
    RingLayout key_addends; // operands, full and empty with their keys
    RingLayout pair_kinds;  // of pairs, full and empty with their keys
    RingLayout key_tasks;   // of tasks for the threads that copy keys
    int tasks = 0;          // one for each stage of queries
    int spare = 0;          // a word that is never read
    int key_blocks = 0;     // which tile a block mask chose, a word for each stage of keys
    int lengths = 0;        // of requests, one for each stage of queries
    int header_bytes = 0;   // all of these and the barriers
    int unit = 0;           // what addends are multiplied with, for eight rows
    // A slope's operands: that of a head, for eight rows of each warpgroup, and that of all keys.
    int slopes = 0, slope_keys = 0;
    int row_factors = 0; // operands of queries in products of rows and keys
    // Offsets of the columns for kinds of keys in a stage of queries, and in one of keys.
    int kind_queries = 0, kind_keys = 0;
    // Offsets of the bytes that say which copies keys take, for each stage of keys and once for a
    // tile that nobody needs; and of the copies of each warp.
    int kind_places = 0, kind_copies = 0;
    int bytes = 0; // of everything

    static FLEXC_SHARED constexpr int panels(int columns) {
        return (2 * columns + kRowBytes - 1) / kRowBytes;
    }
    // Most kinds of keys that fit: a row of a query's panel has two parts of each addend and the
    // addend itself.
    static constexpr int kMostKinds = kRowBytes / (2 + 2 + 4);
    static FLEXC_SHARED constexpr int kind_panel(int kind_columns, int rows) {
        return kind_columns == 0 ? 0 : rows * kRowBytes;
    }
    // Bytes of the addend of a query and a row of the 2-D key index: an operand, or a float.
    static FLEXC_SHARED constexpr int addend_bytes(bool are_operands) {
        return are_operands ? kAddendBytes : 4;
    }
};

// Hands out memory and barriers in order.
struct ForwardAllocator {
    int memory, barriers;

    FLEXC_SHARED constexpr int take(int bytes) {
        memory += bytes;
        return memory - bytes;
    }
    FLEXC_SHARED constexpr RingLayout ring(int stages, int bytes) {
        const RingLayout ring = {stages, bytes, take(stages * bytes), barriers};
        barriers += 2 * 8 * stages;
        return ring;
    }
};

// Bytes by which the last operand of addends ends earlier than it would if the two halves of its
// columns, which are the same memory, lay side by side: compute-sanitizer sees it so.
FLEXC_SHARED constexpr int addend_reach(const ForwardSizes& sizes) {
    constexpr int kWarpgroupRows = 64;
    const int rows = sizes.multiplies_key_addend || sizes.multiplies_slope ? sizes.key_tile
                     : sizes.multiplies_index_2d_rows                      ? kWarpgroupRows
                                                                           : 0;
    return rows * ForwardLayout::kAddendBytes;
}

FLEXC_SHARED constexpr ForwardLayout forward_layout(const ForwardSizes& sizes) {
    const int key_bytes =
        ForwardLayout::panels(sizes.head_dim) * sizes.key_tile * ForwardLayout::kRowBytes;
    const int value_bytes =
        ForwardLayout::panels(sizes.head_dim_v) * sizes.key_tile * ForwardLayout::kRowBytes;
    // The output leaves through the memory of its queries.
    const int widest = ForwardLayout::panels(sizes.head_dim > sizes.head_dim_v ? sizes.head_dim
                                                                               : sizes.head_dim_v);
    const BiasTileLayout bias =
        bias_tile_layout(sizes.query_tile, sizes.key_tile, sizes.bias_bytes);
    const TabulatedLayout slices =
        tabulated_layout(sizes.query_tile, sizes.key_tile, sizes.starts_with_distances);
    const int addend_bytes = ForwardLayout::addend_bytes(sizes.multiplies_index_2d_rows);

    ForwardLayout layout;
    layout.kind_queries = widest * sizes.query_tile * ForwardLayout::kRowBytes;
    layout.kind_keys = key_bytes;
    ForwardAllocator next = {ForwardLayout::kSwizzleBytes,
                             sizes.query_stages * ForwardLayout::kTaskBytes};
    layout.queries = next.ring(sizes.query_stages,
                               layout.kind_queries +
                                   ForwardLayout::kind_panel(sizes.kind_columns, sizes.query_tile));
    layout.keys = next.ring(
        sizes.stages, key_bytes + ForwardLayout::kind_panel(sizes.kind_columns, sizes.key_tile));
    layout.values = next.ring(sizes.stages, value_bytes);
    // Most tiles are beyond a clamp where there is one: stages of these are small.
    constexpr int kEndStages = 4;
    const bool has_ends = sizes.shifted_end_bytes != 0;
    layout.biases = next.ring(has_ends ? sizes.shifted_stages : sizes.stages,
                              bias.panels * bias.panel_bytes + sizes.shifted_bytes);
    layout.shifted_ends = next.ring(has_ends ? kEndStages : 0, sizes.shifted_end_bytes);
    layout.tabulated = next.ring(sizes.stages, sizes.key_values * slices.key_bytes +
                                                   sizes.distance_values * slices.distance_bytes);
    layout.index_2d_rows =
        next.ring(sizes.stages, sizes.index_2d_rows * sizes.query_tile * addend_bytes);
    const int key_operands = sizes.key_operands();
    layout.key_addends = next.ring(key_operands != 0 ? sizes.stages : 0,
                                   key_operands * sizes.key_tile * ForwardLayout::kAddendBytes);
    if (sizes.row_key_products != 0)
        layout.row_factors =
            next.take(key_operands * sizes.query_tile * ForwardLayout::kAddendBytes);
    const int pair_bytes =
        pair_kinds_layout(sizes.query_tile, sizes.key_tile, sizes.pair_kinds).tile_bytes;
    layout.pair_kinds = next.ring(pair_bytes != 0 ? sizes.stages : 0, pair_bytes);
    if (sizes.multiplies_slope) {
        layout.slopes = next.take(sizes.query_tile / 64 * ForwardLayout::kUnitBytes);
        layout.slope_keys = next.take(sizes.key_tile * ForwardLayout::kAddendBytes);
    }
    layout.tables = next.ring(sizes.table_stages, 4 * sizes.table_words);
    constexpr int kKeyTasks = 2; // tasks that are handed on early
    layout.key_tasks = next.ring(sizes.copies_keys ? kKeyTasks : 0, ForwardLayout::kTaskBytes);
    layout.spare = next.barriers;
    layout.key_blocks = layout.spare + 4;
    layout.lengths = (layout.key_blocks + 4 * sizes.stages + 15) / 16 * 16;
    layout.kind_places = layout.lengths + sizes.query_stages * ForwardLayout::kLengthBytes;
    const KindCopiesLayout copies = kind_copies_layout(sizes.key_tile, sizes.kind_copies);
    layout.header_bytes = layout.kind_places + (sizes.stages + 1) * copies.key_bytes;
    constexpr int kWarpRows = 16;
    layout.kind_copies = next.take(sizes.query_tile / kWarpRows * copies.warp_bytes);
    layout.unit = ForwardLayout::kSwizzleBytes - ForwardLayout::kUnitBytes;
    layout.bytes = next.memory + addend_reach(sizes);
    return layout;
}

} // namespace sm90
